"""Run Django's own tests of its tasks with Winch in place of a backend; django_suite.py calls it.

    python scripts/django_tests.py TESTS STORE dummy|immediate|django API

TESTS is the folder `tests` of a Django source release. The suite `dummy` runs the tests with Winch in
place of the dummy backend, `immediate` those of the immediate backend with Winch and a real worker in
its place. The suite `django` changes nothing: what fails there fails without Winch too. API is
`django.tasks` or `django_tasks`. The last line is JSON: how many tests ran, and which failed.
"""

from __future__ import annotations

import json
import sys
import threading
import unittest
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import django
from django.conf import settings

APP: Any = None


def main(tests: str, url: str, suite: str, api: str) -> int:
    sys.path.insert(0, tests)
    settings.configure(
        SECRET_KEY="x" * 50,
        USE_TZ=True,
        INSTALLED_APPS=["django_tasks"] if api == "django_tasks" else [],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    )
    django.setup()
    if suite != "django":
        _put_winch_in(url, suite, api)
    from django.test.runner import DiscoverRunner

    labels = ["tasks.test_immediate_backend"] if suite == "immediate" else ["tasks"]
    runner = DiscoverRunner(verbosity=1, interactive=False)
    found: Any = runner.build_suite(labels)
    runner.setup_test_environment()
    databases = runner.setup_databases()
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=1).run(found)
    runner.teardown_databases(databases)
    failed = {_name(test) for test, _ in [*result.failures, *result.errors]}
    print(json.dumps({"run": result.testsRun, "failed": sorted(failed)}))
    return 0


def _name(test: Any) -> str:
    """The test's own name, also for a part of it."""
    return str(getattr(test, "test_case", test).id())


def _put_winch_in(url: str, suite: str, api: str) -> None:
    from winch import App
    from winch.integrations.django.discovery import prepare

    global APP  # noqa: PLW0603  # one store for the run; Django makes a backend for each thread
    APP = App(url, poll="50ms", sweep="1s")
    APP.migrate()
    prepare(APP, "default", {})
    name = "DummyBackend" if suite == "dummy" else "ImmediateBackend"
    module = import_module(f"{api}.backends.{suite}")
    setattr(module, name, _backend(suite))


def _backend(suite: str) -> type[Any]:
    from winch.integrations.django.backend import WinchBackend
    from winch.integrations.django.stores import NOW, ON_COMMIT, Store

    class Stored(WinchBackend):
        """Winch with what the tests need of the dummy backend: all results, and a way to forget them."""

        @property
        def store(self) -> Store:
            return Store(APP, "default", ON_COMMIT)

        @property
        def results(self) -> list[Any]:
            kept = [job.record for job in reversed(APP.jobs.list(limit=1000))]
            return [self.get_result(record.id) for record in kept] + self.waiting(self.store)

        def clear(self) -> None:
            for job in APP.jobs.list(limit=1000):
                job.delete()

    class Worked(WinchBackend):
        """Winch with a worker that runs the job before `enqueue` returns. The job is stored at once: a
        worker cannot see what a transaction has not committed."""

        @property
        def store(self) -> Store:
            return Store(APP, "default", NOW)

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            _run_worker([task.queue_name])
            result.refresh()
            return result

    return Stored if suite == "dummy" else Worked


def _run_worker(queues: Iterable[str]) -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            APP.run_worker(queues=list(queues), burst=True)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
