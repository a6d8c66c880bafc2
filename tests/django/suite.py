"""Tests of the backend under Django's own test runner; test_shop.py runs them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from django.contrib.auth.models import Permission, User
from django.test import SimpleTestCase, TestCase, override_settings
from django.urls import reverse
from django.utils import timezone

from tests.django import suite_tasks as tasks
from winch import ConfigError
from winch.integrations.django import RequestFilter, app_of, task
from winch.integrations.django.api import task_backends, task_finished, task_started
from winch.integrations.django.discovery import find, is_allowed
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
        self.signals: list[tuple[str, str, int]] = []
        task_started.connect(self._started)
        task_finished.connect(self._finished)
        self.addCleanup(task_started.disconnect, self._started)
        self.addCleanup(task_finished.disconnect, self._finished)

    def _started(self, task_result: Any, **_: Any) -> None:
        self.signals.append(("started", str(task_result.status), task_result.attempts))

    def _finished(self, task_result: Any, **_: Any) -> None:
        self.signals.append(("finished", str(task_result.status), task_result.attempts))

    def test_a_task_is_retried_as_its_policy_says(self) -> None:
        with jobs() as world:
            result = tasks.fails.enqueue("no")
            world.run_all()
            result.refresh()
        assert (result.status, result.attempts) == ("FAILED", 3)
        assert [error.exception_class for error in result.errors] == [ValueError] * 3
        started = [("started", "RUNNING", attempt) for attempt in (1, 2, 3)]
        assert self.signals == [*started, ("finished", "FAILED", 3)]

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
        assert self.signals[-1] == ("finished", "SUCCESSFUL", 2)

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

    def test_a_limit_names_an_argument_of_the_function(self) -> None:
        from winch import Limit

        wrong = task(limit=Limit(1, key="nobody"))(tasks.keeps_nothing)
        with jobs(), self.assertRaisesMessage(ConfigError, "has no argument 'nobody'"):
            wrong.enqueue(1)

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

    def test_a_cancelled_task_has_failed(self) -> None:
        with jobs():
            result = tasks.doubled.using(run_after=timezone.now() + timedelta(days=900)).enqueue(1)
            app_of().jobs.cancel(result.id)
            result.refresh()
        assert result.status == "FAILED"
        assert result.errors[-1].exception_class_path == "winch.JobCancelled"
        assert result.errors[-1].exception_class.__name__ == "JobCancelled"


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


class Names(SimpleTestCase):
    """Which names of the store may be imported."""

    def test_only_tasks_are_found(self) -> None:
        shop = "examples.django_shop.shop"
        assert find(f"{shop}.tasks.write_receipt") is not None
        for name in ("os.system", f"{shop}.models.Order", f"{shop}.tasks.Order", "antigravity.x", "x"):
            assert find(name) is None, name

    def test_modules_must_be_allowed(self) -> None:
        assert is_allowed("examples.django_shop.shop.tasks")
        assert is_allowed("examples.django_shop.shop.tasks.mail")
        assert is_allowed("shop.jobs", ["shop.jobs"])
        for name in ("examples.django_shop.shop.tasks_evil", "examples.django_shop.manage", "os"):
            assert not is_allowed(name), name


class Checks(SimpleTestCase):
    """`manage.py check`."""

    def test_an_unknown_option_is_named_with_the_nearest(self) -> None:
        wrong = {"default": {**TASKS["default"], "OPTIONS": {"urll": "memory://"}}}
        with (
            override_settings(TASKS=wrong),
            self.assertRaisesMessage(ConfigError, "no option 'urll' (did you mean 'url'?)"),
        ):
            list(task_backends["default"].check())

    def test_join_needs_the_same_database(self) -> None:
        options = {"url": "memory://", "transaction": "join"}
        with override_settings(TASKS={"default": {**TASKS["default"], "OPTIONS": options}}):
            [found] = task_backends["default"].check()
        assert found.id == "winch.E002"


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

    def test_a_wrong_schedule_is_explained(self) -> None:
        self._login("view_jobschedule", "operate_jobschedule")
        with jobs():
            wrong = self.client.post(reverse(self.url), {**self.new, "every": "", "cron": "a b"})
            self.assertContains(wrong, "cron")
            wrong = self.client.post(reverse(self.url), {**self.new, "args": "{}"})
            self.assertContains(wrong, "a JSON list is needed")
            assert self._added() == []
