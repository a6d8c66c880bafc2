"""How the tasks of a project are found and registered, under Django's own test runner."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from django.core.exceptions import SynchronousOnlyOperation
from django.test import RequestFactory, SimpleTestCase, TestCase, override_settings

from tests.django import suite_tasks as tasks
from winch import App, ConfigError, Limit, PayloadTooLarge, Rate
from winch import Task as WinchTask
from winch.engine.tasks.plain_arguments import PlainArguments
from winch.integrations.django import app_of, discovery, requests, task
from winch.integrations.django.api import task_backends, task_finished
from winch.integrations.django.discovery import discover, find, is_allowed
from winch.integrations.django.handlers import register, runner_of
from winch.integrations.django.testing import jobs

HERE = "tests.django.suite_tasks"
TASKS = {
    "default": {
        "BACKEND": "winch.integrations.django.WinchBackend",
        "QUEUES": [],
        "OPTIONS": {"url": "memory://", "modules": [HERE]},
    }
}
# A module that takes its time: its task is there at the end.
SLOW = """
import time
time.sleep(0.3)
from winch.integrations.django import task
@task()
def late(): ...
"""
own_app = App("memory://")
OWN_APP = {"app": f"{__name__}:own_app", "modules": [HERE]}


def at_once(count: int, function: Callable[[], object]) -> None:
    """Call the function in several threads at the same time."""
    start = threading.Barrier(count)

    def call() -> None:
        start.wait()
        function()

    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Names(SimpleTestCase):
    """Which names of the store may be imported."""

    def test_the_first_calls_of_several_threads_share_one_finished_task(self) -> None:
        """As the first requests of a web server do: none may see a task that is half made."""
        app = App("memory://")
        made, take = [], WinchTask.take_plain_arguments

        def slowly(task: WinchTask[Any, Any], own: inspect.Signature) -> None:
            time.sleep(0.05)
            take(task, own)

        def use() -> None:
            found = register(app, tasks.doubled, "default", {})
            made.append((found, type(found.arguments)))

        with mock.patch.object(WinchTask, "take_plain_arguments", slowly):
            at_once(4, use)
        assert [made[0]] * 4 == made
        assert made[0][1] is PlainArguments

    def test_only_tasks_are_found(self) -> None:
        shop = "examples.django_shop.shop"
        assert find(f"{shop}.tasks.write_receipt") is not None
        for name in ("os.system", f"{shop}.models.Order", f"{shop}.tasks.Order", "antigravity.x", "x"):
            assert find(name) is None, name

    def test_a_module_that_another_thread_imports_is_waited_for(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "slow_tasks.py").write_text(SLOW)
            (Path(folder) / "broken_tasks.py").write_text("import nowhere_at_all\n")
            sys.path.insert(0, folder)
            try:
                importer = threading.Thread(target=lambda: importlib.import_module("slow_tasks"))
                importer.start()
                while "slow_tasks" not in sys.modules:
                    time.sleep(0.001)
                found = find("slow_tasks.late")
                importer.join()
                assert found is not None
                assert found.name == "late"
                with self.assertRaisesMessage(ModuleNotFoundError, "nowhere_at_all"):
                    find("broken_tasks.late", ["broken_tasks"])
                assert find("no_tasks.late", ["no_tasks"]) is None
            finally:
                sys.path.remove(folder)

    def test_modules_must_be_allowed(self) -> None:
        assert is_allowed("examples.django_shop.shop.tasks")
        assert is_allowed("examples.django_shop.shop.tasks.mail")
        assert is_allowed("shop.jobs", ["shop.jobs"])
        for name in ("examples.django_shop.shop.tasks_evil", "examples.django_shop.manage", "os"):
            assert not is_allowed(name), name


class Registered(SimpleTestCase):
    """A task is registered as a whole, or not at all."""

    def test_a_task_is_complete_before_another_thread_can_find_it(self) -> None:
        """As `get_result` in one request, while another one enqueues the first job of the task."""
        app, seen = App("memory://"), []
        take = WinchTask.take_plain_arguments

        def look(task: WinchTask[Any, Any], own: inspect.Signature) -> None:
            seen.append(task.name in app.tasks)
            take(task, own)

        with mock.patch.object(WinchTask, "take_plain_arguments", look):
            made = register(app, tasks.doubled, "default", {})
        assert seen == [False]
        runner = runner_of(made)
        assert runner is not None
        assert runner.task is tasks.doubled

    @override_settings(TASKS=TASKS)
    def test_options_that_name_no_argument_fail_every_enqueue(self) -> None:
        for options in (
            {"limit": Limit(1, key="unknown")},
            {"enqueue_rate": Rate(1, per="1s", key="unknown")},
        ):
            wrong = task(**options)(tasks.keeps_nothing)
            with jobs():
                for _ in range(2):
                    with self.assertRaisesMessage(ConfigError, "has no argument 'unknown'"):
                        wrong.enqueue(1)


@override_settings(TASKS=TASKS)
class Deferred(TestCase):
    """An enqueue that waits for the commit."""

    def test_a_call_that_cannot_be_stored_fails_in_its_transaction(self) -> None:
        wrong = task(limit=Limit(1, key="unknown"))(tasks.keeps_nothing)
        with jobs(), self.captureOnCommitCallbacks() as waiting:
            with self.assertRaisesMessage(ConfigError, "has no argument 'unknown'"):
                wrong.enqueue(1)
            with self.assertRaisesMessage(PayloadTooLarge, "bytes"):
                tasks.keeps.enqueue("x" * 2_000_000)
        assert waiting == []


class Discovery(SimpleTestCase):
    """What a worker, and the admin's page of schedules, import before they begin."""

    def _app(self) -> App:
        return App("memory://")

    def test_every_thread_has_all_tasks(self) -> None:
        app, found = self._app(), []

        def slowly(name: str) -> None:
            time.sleep(0.05)

        def use() -> None:
            discover(app, "default", {"modules": [HERE]})
            found.append(f"{HERE}.doubled" in app.tasks)

        with mock.patch.object(discovery, "autodiscover_modules", slowly):
            at_once(4, use)
        assert found == [True] * 4

    def test_a_module_that_cannot_be_imported_fails_each_time(self) -> None:
        app = self._app()
        for _ in range(2):
            with self.assertRaisesMessage(ModuleNotFoundError, "tests.django.nowhere"):
                discover(app, "default", {"modules": ["tests.django.nowhere"]})
        discover(app, "default", {"modules": [HERE]})
        assert f"{HERE}.doubled" in app.tasks

    def test_two_entries_that_share_a_store_each_declare_their_schedules(self) -> None:
        app = self._app()
        for alias in ("other", "default", "default"):
            discover(app, alias, {"modules": [HERE]})
        assert [one.name for one in app.runtime.schedules.declared()].count(f"{HERE}.ticks") == 1

    @override_settings(TASKS={"default": {**TASKS["default"], "OPTIONS": OWN_APP}})
    def test_an_app_of_the_project_finds_the_tasks_by_name(self) -> None:
        assert app_of() is own_app
        with override_settings(TASKS=TASKS):
            assert f"{HERE}.doubled" not in own_app.tasks
        result = tasks.doubled.enqueue(1)
        own_app.runtime.tasks._tasks.clear()  # as in a process that has not enqueued this task
        assert task_backends["default"].get_result(result.id) == result


@override_settings(TASKS=TASKS)
class Cancelled(SimpleTestCase):
    """A job that an operator cancels in a web process."""

    def _cancelled(self, cancel: Callable[[str], object]) -> list[int]:
        """Cancel a job; the threads in which its end is announced."""
        threads: list[int] = []

        def note(task_result: Any, **_: Any) -> None:
            assert task_result.errors[-1].exception_class_path == "winch.JobCancelled"
            threads.append(threading.get_ident())

        task_finished.connect(note)
        self.addCleanup(task_finished.disconnect, note)
        result = tasks.keeps.enqueue(1)
        cancel(result.id)
        until = time.monotonic() + 10
        while not threads and time.monotonic() < until:
            time.sleep(0.01)
        app_of().jobs.get(result.id).delete()
        return threads

    def test_its_end_is_announced_in_the_thread_of_the_call(self) -> None:
        assert self._cancelled(app_of().jobs.cancel) == [threading.get_ident()]

    def test_on_an_event_loop_a_thread_announces_it(self) -> None:
        found = self._cancelled(lambda job_id: asyncio.run(app_of().jobs.acancel(job_id)))
        assert len(found) == 1
        assert found != [threading.get_ident()]


class Users(SimpleTestCase):
    """The user behind a job, where asking for it is not allowed."""

    def test_a_coroutine_does_not_query_for_the_user(self) -> None:
        class Lazy:
            @property
            def is_authenticated(self) -> bool:
                raise SynchronousOnlyOperation

        class Known:
            is_authenticated = True

            def get_username(self) -> str:
                return "grace"

        request: Any = RequestFactory().get("/")
        request.user = Lazy()
        assert requests._user_of(request) == ""
        request._acached_user = Known()
        assert requests._user_of(request) == "grace"
