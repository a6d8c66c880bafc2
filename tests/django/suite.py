"""Tests of the backend under Django's own test runner; test_shop.py runs them."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any, ClassVar
from unittest import mock

from django.contrib.auth.models import Permission, User
from django.core.checks import run_checks
from django.core.management.base import CommandError
from django.db import connections
from django.test import SimpleTestCase, TestCase, override_settings
from django.urls import reverse
from django.utils import timezone

from tests.django import suite_tasks as tasks
from winch import ConfigError
from winch.cli.run.worker import worker
from winch.drivers.sqlite.driver import SqliteDriver
from winch.integrations.django import RequestFilter, app_of, task
from winch.integrations.django.api import InvalidTask, task_backends, task_finished, task_started
from winch.integrations.django.management.commands.winch import Command, worker_command
from winch.integrations.django.stores import url_of
from winch.integrations.django.testing import jobs

TASKS = {
    "default": {
        "BACKEND": "winch.integrations.django.WinchBackend",
        "QUEUES": [],
        "OPTIONS": {"url": "memory://", "modules": ["tests.django.suite_tasks"]},
    }
}


@override_settings(TASKS=TASKS)
class Running(SimpleTestCase):
    """What becomes of tasks that a worker runs."""

    def setUp(self) -> None:
        self.signals: list[tuple[str, tuple[str, str, int]]] = []
        task_started.connect(self._started)
        task_finished.connect(self._finished)
        self.addCleanup(task_started.disconnect, self._started)
        self.addCleanup(task_finished.disconnect, self._finished)

    def _started(self, task_result: Any, **_: Any) -> None:
        self._note("started", task_result)

    def _finished(self, task_result: Any, **_: Any) -> None:
        self._note("finished", task_result)

    def _note(self, kind: str, result: Any) -> None:
        self.signals.append((result.task.name, (kind, str(result.status), result.attempts)))

    def _signals(self, name: str) -> list[tuple[str, str, int]]:
        """Those about one task."""
        return [signal for found, signal in self.signals if found == name]

    def test_a_task_is_retried_by_its_policy(self) -> None:
        with jobs() as world:
            result = tasks.fails.enqueue("no")
            world.run_all()
            result.refresh()
        assert (result.status, result.attempts) == ("FAILED", 3)
        assert [error.exception_class for error in result.errors] == [ValueError] * 3
        started = [("started", "RUNNING", attempt) for attempt in (1, 2, 3)]
        assert self._signals("fails") == [*started, ("finished", "FAILED", 3)]

    def test_without_a_policy_a_task_runs_once(self) -> None:
        with jobs() as world:
            result = tasks.fails_once.enqueue()
            world.run_all()
            result.refresh()
        assert (result.status, result.attempts) == ("FAILED", 1)

    def test_without_a_policy_a_task_may_ask_for_another_attempt(self) -> None:
        with jobs() as world:
            result = tasks.asks.enqueue()
            world.run_all()
            result.refresh()
        assert (result.return_value, result.attempts) == (2, 2)
        assert self._signals("asks")[-1] == ("finished", "SUCCESSFUL", 2)

    def test_a_unique_task_gives_the_job_that_is_there(self) -> None:
        tasks.seen.clear()
        with jobs() as world:
            first = tasks.charge.enqueue(7)
            again = tasks.charge.enqueue(order=7, merchant="other")
            other = tasks.charge.enqueue(8)
            assert again.id == first.id
            assert other.id != first.id
            world.run_all()
        assert sorted(tasks.seen) == [(7, "m"), (8, "m")]

    def test_arguments_arrive_as_they_were_given(self) -> None:
        with jobs() as world:
            result = tasks.keeps.enqueue(1, "b", args=[2], ctx=None)
            world.run_all()
            result.refresh()
        assert result.return_value == [[1, "b"], {"args": [2], "ctx": None}]
        assert (result.args, result.kwargs) == ([1, "b"], {"args": [2], "ctx": None})

    def test_a_coroutine_runs(self) -> None:
        with jobs() as world:
            result = tasks.doubled.enqueue(21)
            world.run_all()
            result.refresh()
        assert result.return_value == 42

    def test_run_after_waits(self) -> None:
        with jobs() as world:
            later = world.now + timedelta(hours=1)
            result = tasks.doubled.using(run_after=later, priority=5).enqueue(1)
            world.advance("59m")
            result.refresh()
            assert result.status == "READY"
            found = tasks.doubled.get_result(result.id)
            assert (found.task.run_after, found.task.priority) == (later, 5)
            world.advance("2m")
            result.refresh()
            assert result.status == "SUCCESSFUL"

    def test_a_cancelled_task_has_failed_and_is_announced(self) -> None:
        with jobs():
            result = tasks.keeps.using(run_after=timezone.now() + timedelta(days=900)).enqueue(1)
            app_of().jobs.cancel(result.id)
            result.refresh()
        assert result.status == "FAILED"
        assert result.errors[-1].exception_class_path == "winch.JobCancelled"
        assert result.errors[-1].exception_class.__name__ == "JobCancelled"
        assert self._signals("keeps") == [("finished", "FAILED", 0)]


@override_settings(TASKS=TASKS)
class Requests(TestCase):
    """The id and user of a request reach the handler's log records."""

    def _seen(self, **headers: str) -> list[tuple[str, str, str]]:
        """Enqueue during a request; what the handlers' records have."""
        own = RequestFilter()
        records: list[Any] = []

        def note(record: Any) -> None:
            own.filter(record)
            records.append(record)

        tasks.on_log = note
        with jobs() as world:
            with self.captureOnCommitCallbacks(execute=True):
                answer = self.client.get("/enqueue", headers=headers)
            assert answer.status_code == 200, answer.content
            with self.captureOnCommitCallbacks(execute=True):
                world.run_all()
            world.run_all()
        found = [(one.request_id, one.request_user, one.job_id) for one in records]
        assert len(found) == 3  # of a function, of the coroutine that it enqueues, and outside
        assert found[-1] == ("-", "-", "-")
        assert {answer.headers["X-Request-ID"]} == {one[0] for one in found[:2]}
        assert len({one[2] for one in found}) == 3
        return found

    def test_a_user_is_named(self) -> None:
        self.client.force_login(User.objects.create_user("grace"))
        with override_settings(ROOT_URLCONF="tests.django.suite_tasks"):
            found = self._seen(**{"X-Request-ID": "r-1"})
        assert [one[:2] for one in found[:2]] == [("r-1", "grace")] * 2

    def test_an_id_that_could_break_a_line_is_replaced(self) -> None:
        with override_settings(ROOT_URLCONF="tests.django.suite_tasks"):
            found = self._seen(**{"X-Request-ID": "r 1 user=root"})
        assert len(found[0][0]) == 32
        assert found[0][1] == "-"


@override_settings(TASKS={"default": {**TASKS["default"], "QUEUES": ["default", "mail"]}})
class Commands(SimpleTestCase):
    """`manage.py winch worker` becomes `winch worker`."""

    def _worker(self, *words: str) -> list[str]:
        parser = Command().create_parser("manage.py", "winch")
        options = vars(parser.parse_args(["worker", *words]))
        [name, *made] = worker_command(task_backends["default"], options)
        assert name == "worker"
        return made

    def test_the_flags_of_django_tasks_db_have_their_meaning(self) -> None:
        words = [
            "--queue-name",
            "*",
            "--exclude-queues",
            "slow,mail",
            "--batch",
            "--reload",
            "--max-tasks",
            "5",
        ]
        found = self._worker(*words)
        # The command line of `winch` itself reads the result.
        given = worker.make_context("worker", found).params
        expected = {"queues": "*,-slow,-mail", "burst": True, "reload": True, "max_jobs": 5}
        expected["no_replace"] = True
        assert {name: given[name] for name in expected} == expected

    def test_queues_are_those_of_the_settings_without_the_excluded(self) -> None:
        assert self._worker()[:2] == ["--queues", "default,mail"]
        assert self._worker("--exclude-queues", "mail")[:2] == ["--queues", "default"]
        assert self._worker("-Q", "mail:5,default:1", "--exclude-queues", " mail")[:2] == [
            "--queues",
            "default:1",
        ]
        with self.assertRaisesMessage(CommandError, "no queue is left"):
            self._worker("--exclude-queues", "mail,default")

    def test_a_misspelt_queue_is_named(self) -> None:
        printed = StringIO()
        command = Command(stderr=printed)
        for queues in ("*,-slow", "mail:5,default", "mial", "reports"):
            command._warn_of_unknown(task_backends["default"], queues)
        assert printed.getvalue().splitlines() == [
            "TASKS['default']['QUEUES'] has no queue 'mial'; did you mean 'mail'?",
            "TASKS['default']['QUEUES'] has no queue 'reports', so no task is enqueued there",
        ]
        with self.assertRaisesMessage(CommandError, "TASKS has no entry 'nope'; it has default"):
            command.handle(word="migrate", backend="nope")

    def test_a_task_of_an_unknown_queue_is_explained(self) -> None:
        with self.assertRaisesMessage(InvalidTask, "Add it to TASKS['default']['QUEUES'], which has "):
            task(queue_name="reports")(tasks.keeps_nothing)


class Checks(SimpleTestCase):
    """`manage.py check`."""

    def test_an_unknown_option_is_named_with_the_nearest(self) -> None:
        wrong = {"default": {**TASKS["default"], "OPTIONS": {"urll": "memory://"}}}
        message = "TASKS['default']: no option 'urll' (did you mean 'url'?)"
        with override_settings(TASKS=wrong):
            [found] = task_backends["default"].check()
            assert (found.id, found.msg) == ("winch.E001", message)
            others = run_checks(include_deployment_checks=True, databases=["default"])
            assert {one.id for one in others if one.id.startswith("winch.")} <= {"winch.E001"}
            with self.assertRaisesMessage(ConfigError, message):
                tasks.doubled.enqueue(1)

    def test_an_address_that_no_driver_takes_is_named(self) -> None:
        wrong = {"default": {**TASKS["default"], "OPTIONS": {"url": "mysql://localhost/shop"}}}
        with override_settings(TASKS=wrong):
            [found] = task_backends["default"].check()
        assert found.id == "winch.E001"
        assert "mysql" in found.msg

    def test_join_needs_the_same_database(self) -> None:
        options = {"url": "memory://", "transaction": "join"}
        with override_settings(TASKS={"default": {**TASKS["default"], "OPTIONS": options}}):
            [found] = task_backends["default"].check()
        assert found.id == "winch.E002"

    def _findings(self, url: str, *, is_risky: bool, **options: Any) -> list[str]:
        """The ids of `manage.py check --deploy` about jobs at this address, beside shop.sqlite3."""
        given = {**TASKS["default"], "OPTIONS": {"url": url, **options}}
        with (
            override_settings(TASKS={"default": given}),
            mock.patch.dict(connections["default"].settings_dict, NAME="/srv/shop.sqlite3"),
            mock.patch.object(SqliteDriver, "fixed_in", "3.51.3" if is_risky else None),
        ):
            self.mode = task_backends["default"].store.mode
            found = [*task_backends["default"].check(), *run_checks(include_deployment_checks=True)]
        return sorted({one.id for one in found if one.id.startswith("winch.")})

    def test_a_build_of_sqlite_that_can_lose_rows_is_named_before_a_deployment(self) -> None:
        own = "sqlite:////srv/shop-winch.sqlite3"
        assert self._findings(own, is_risky=True) == ["winch.W003"]
        assert self._findings(own, is_risky=False) == []
        assert self._findings("memory://", is_risky=True) == []

    def test_jobs_share_djangos_file_where_the_build_of_sqlite_allows_it(self) -> None:
        if connections["default"].vendor != "sqlite":
            self.skipTest("Django's database is no file")
        for url in ("sqlite:////srv/shop.sqlite3", "sqlite:////srv/../srv/shop.sqlite3?shared=1"):
            assert self._findings(url, is_risky=True) == ["winch.E004", "winch.W003"]
            assert self.mode == "on_commit"
            assert self._findings(url, is_risky=False, transaction="join") == []
            assert self._findings(url, is_risky=False) == []
            assert self.mode == "join"

    def test_the_store_is_beside_the_file_that_a_uri_names(self) -> None:
        sqlite = {"ENGINE": "django.db.backends.sqlite3"}
        for name in ("/srv/a b.sqlite3", "file:/srv/a%20b.sqlite3?cache=private"):
            assert url_of({**sqlite, "NAME": name}, "default") == "sqlite:////srv/a%20b-winch.sqlite3"
        for name in (":memory:", "", "file:memorydb_default?mode=memory&cache=shared"):
            assert url_of({**sqlite, "NAME": name}, "default") == "memory://"


@override_settings(TASKS=TASKS)
class Admin(TestCase):
    """Jobs in Django's admin."""

    def _login(self, *permissions: str) -> None:
        user = User.objects.create_user("ada", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        self.client.force_login(user)

    def test_the_list_needs_its_permission(self) -> None:
        self._login()
        assert self.client.get(reverse("admin:winch_job_changelist")).status_code == 403

    def test_a_viewer_may_look_and_not_act(self) -> None:
        self._login("view_job")
        with jobs():
            with self.captureOnCommitCallbacks(execute=True):
                result = tasks.doubled.enqueue(1)
            page = self.client.get(reverse("admin:winch_job_changelist"))
            self.assertContains(page, result.id)
            self.assertNotContains(page, '<button type="submit" class="button">cancel')
            act = reverse("admin:winch_job_act", args=["default", result.id, "cancel"])
            assert self.client.post(act).status_code == 403

    def test_an_entry_of_tasks_that_is_not_winchs_has_no_page(self) -> None:
        self._login("view_job", "view_jobschedule", "operate_job")
        for name in ("job", "jobschedule"):
            page = reverse(f"admin:winch_{name}_changelist")
            assert self.client.get(page, {"backend": "unknown"}).status_code == 404
        act = reverse("admin:winch_job_act", args=["unknown", "7", "cancel"])
        assert self.client.post(act).status_code == 404

    def test_a_project_with_two_stores_chooses_between_them(self) -> None:
        self._login("view_job", "view_jobschedule")
        for name in ("job", "jobschedule"):
            page = reverse(f"admin:winch_{name}_changelist")
            self.assertNotContains(self.client.get(page), "winch-backend")
            with override_settings(TASKS={**TASKS, "other": TASKS["default"]}):
                chosen = self.client.get(page, {"backend": "other"})
                self.assertContains(chosen, "<option selected>other</option>")

    def test_there_are_no_pages_of_rows(self) -> None:
        self._login("view_job", "operate_job")
        page = reverse("admin:winch_job_changelist")
        for rest in ("7/", "7/change/", "7/history/", "7/delete/", "add/"):
            assert self.client.get(f"{page}{rest}").status_code in (404, 405), rest

    def test_an_operator_cancels_and_retries_under_the_own_name(self) -> None:
        self._login("view_job", "operate_job")
        with jobs():
            with self.captureOnCommitCallbacks(execute=True):
                result = tasks.doubled.using(run_after=timezone.now() + timedelta(days=900)).enqueue(1)
            for action, status in (("cancel", "FAILED"), ("retry", "READY")):
                act = reverse("admin:winch_job_act", args=["default", result.id, action])
                assert self.client.get(act).status_code == 405
                assert self.client.post(act).status_code == 302
                result.refresh()
                assert result.status == status
            lines = app_of().audit.list()
            assert {(line.who, line.via) for line in lines} == {("ada", "django")}

    def test_an_operator_acts_on_the_selected_jobs(self) -> None:
        self._login("view_job", "operate_job")
        with jobs():
            with self.captureOnCommitCallbacks(execute=True):
                chosen, other = ([tasks.doubled.enqueue(n).id for n in range(2)] for _ in range(2))
            many = reverse("admin:winch_job_act_on_many", args=["default"])
            page = self.client.get(reverse("admin:winch_job_changelist"))
            self.assertContains(page, 'form="winch-selected"', 4)
            given = {"line": [*chosen, "none"], "verb": "cancel"}
            answer = self.client.post(many, given, follow=True)
            self.assertContains(answer, "ancel: 2 jobs")
            self.assertContains(answer, "none")
            states = {job.id: str(job.state) for job in app_of().jobs.list()}
            assert states == dict.fromkeys(chosen, "cancelled") | dict.fromkeys(other, "ready")
            assert self.client.post(many, {**given, "verb": "delete"}).status_code == 405
            assert self.client.get(many).status_code == 405

    def test_a_viewer_may_not_act_on_many(self) -> None:
        self._login("view_job")
        many = reverse("admin:winch_job_act_on_many", args=["default"])
        assert self.client.post(many, {"line": ["7"], "verb": "cancel"}).status_code == 403


@override_settings(TASKS=TASKS)
class Dashboard(TestCase):
    """The dashboard behind Django's login and permissions."""

    page: ClassVar[dict[str, str]] = {"accept": "text/html", "sec-fetch-site": "same-origin"}

    def test_a_visitor_is_sent_to_the_login(self) -> None:
        sent = self.client.get("/jobs/", headers=self.page)
        self.assertRedirects(sent, "/admin/login/?next=/jobs/", fetch_redirect_response=False)
        assert self.client.get("/jobs/api/v1/jobs", headers=self.page).status_code == 401

    def test_permissions_decide(self) -> None:
        expected = {(): (403, 401), ("view_job",): (200, 403), ("view_job", "operate_job"): (200, 200)}
        for permissions, (shown, done) in expected.items():
            user = User.objects.create_user("-".join(["ada", *permissions]), is_staff=True)
            user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
            self.client.force_login(user)
            with jobs():
                with self.captureOnCommitCallbacks(execute=True):
                    result = tasks.doubled.enqueue(1)
                assert self.client.get("/jobs/", headers=self.page).status_code == shown
                cancel = f"/jobs/api/v1/jobs/{result.id}/cancel"
                answer = self.client.post(cancel, "{}", content_type="application/json")
                assert answer.status_code == done, permissions
                found = [(line.who, line.action) for line in app_of().audit.list()]
                assert found == ([(user.get_username(), "cancel")] if done == 200 else [])


@override_settings(TASKS=TASKS)
class AdminSchedules(TestCase):
    """Schedules in Django's admin."""

    url = "admin:winch_jobschedule_changelist"
    ticks = "tests.django.suite_tasks.ticks"
    new: ClassVar[dict[str, str]] = {
        "name": "often",
        "task": "tests.django.suite_tasks.charge",
        "every": "15m",
        "args": "[7]",
        "kwargs": '{"merchant": "x"}',
    }

    def _login(self, *permissions: str) -> None:
        user = User.objects.create_user("ada", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        self.client.force_login(user)

    def _added(self) -> list[str]:
        return [one.name for one in app_of().schedules.list() if not one.is_code]

    def test_a_viewer_may_look_and_not_add(self) -> None:
        self._login("view_jobschedule")
        with jobs():
            assert self.client.get(reverse(self.url)).status_code == 200
            assert self.client.post(reverse(self.url), self.new).status_code == 403
            act = reverse("admin:winch_jobschedule_act", args=["default", "often", "remove"])
            assert self.client.post(act).status_code == 403
            assert self._added() == []

    def test_an_operator_adds_a_schedule_that_runs(self) -> None:
        self._login("view_jobschedule", "operate_jobschedule")
        tasks.seen.clear()
        with jobs() as world:
            assert self.client.post(reverse(self.url), self.new).status_code == 302
            page = self.client.get(reverse(self.url))
            self.assertContains(page, "every 15m")
            with self.captureOnCommitCallbacks(execute=True):
                world.advance("31m")
            assert [one for one in tasks.seen if one != ("tick", 3)] == [(7, "x")] * 2
            for action in ("pause", "resume", "trigger", "remove"):
                act = reverse("admin:winch_jobschedule_act", args=["default", "often", action])
                assert self.client.get(act).status_code == 405
                assert self.client.post(act).status_code == 302
            assert self._added() == []
            lines = app_of().audit.list()
            assert len(lines) == 5
            assert {(line.who, line.via) for line in lines} == {("ada", "django")}

    def test_a_schedule_of_the_code_is_shown_and_runs_with_its_arguments(self) -> None:
        self._login("view_jobschedule", "operate_jobschedule")
        tasks.seen.clear()
        with jobs() as world:
            self.assertContains(self.client.get(reverse(self.url)), "tests.django.suite_tasks.ticks")
            world.advance("61m")
            act = reverse("admin:winch_jobschedule_act", args=["default", self.ticks, "remove"])
            self.client.post(act)
            assert [one.name for one in app_of().schedules.list() if one.name == self.ticks]
        assert tasks.seen == [("tick", 3)]

    def test_the_time_zone_of_a_schedule_is_shown(self) -> None:
        self._login("view_jobschedule", "operate_jobschedule")
        daily = {**self.new, "every": "", "cron": "0 3 * * *", "tz": "Europe/Berlin"}
        with jobs():
            self.client.post(reverse(self.url), daily)
            self.assertContains(self.client.get(reverse(self.url)), "At 03:00 every day, Europe/Berlin")

    def test_a_wrong_schedule_is_explained(self) -> None:
        self._login("view_jobschedule", "operate_jobschedule")
        with jobs():
            wrong = self.client.post(reverse(self.url), {**self.new, "every": "", "cron": "a b"})
            self.assertContains(wrong, "cron")
            wrong = self.client.post(reverse(self.url), {**self.new, "args": "{}"})
            self.assertContains(wrong, "a JSON list is needed")
            assert self._added() == []
