"""Run Wagtail's own tests with Winch as the backend of its tasks; wagtail_suite.py calls it.

    python scripts/wagtail_tests.py WAGTAIL plain|winch LABEL…

WAGTAIL is the folder of a source release. `winch` puts Winch in place of the immediate backend: the
jobs are in memory, and a worker in the test's own thread runs them before `enqueue` returns, as the
tests expect. `plain` changes nothing: what fails there fails without Winch too. The last line is JSON:
how many tests ran, which failed and why, which enqueued, and how many jobs there were.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
from typing import Any

WORLD: Any = None
APP: Any = None
ENQUEUED: dict[str, int] = {}
STATES: dict[str, int] = {}
RUNNING: list[str] = [""]


def main(source: str, suite: str, *labels: str) -> int:
    global WORLD, APP  # noqa: PLW0603  # one store for the run; Django makes a backend for each thread
    sys.path.insert(0, source)
    os.environ["DJANGO_SETTINGS_MODULE"] = "wagtail.test.settings"
    with tempfile.TemporaryDirectory() as folder:
        from wagtail.test import settings

        # Wagtail's own folders outlive a run. A file of an earlier run gives the next one another name.
        settings.STATIC_ROOT = f"{folder}/static"
        settings.MEDIA_ROOT = f"{folder}/media"
        if suite == "winch":
            settings.TASKS = {"default": {"BACKEND": "wagtail_tests.Worked"}}
            settings.INSTALLED_APPS.append("winch.integrations.django")
        import django

        django.setup()
        if suite == "winch":
            from winch import App
            from winch.integrations.django.discovery import discover, prepare
            from winch.testing import virtual

            APP = App("memory://")
            prepare(APP, "default", {})
            discover(APP, "default", {})  # a virtual world serves the queues of the tasks that it finds
            with virtual(APP) as WORLD:
                return _run(labels)
        return _run(labels)


def _run(labels: tuple[str, ...]) -> int:
    from django.test.runner import DiscoverRunner

    runner = DiscoverRunner(verbosity=1, interactive=False)
    found: Any = runner.build_suite(list(labels))
    runner.setup_test_environment()
    databases = runner.setup_databases()
    named: Any = _Named
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=1, resultclass=named).run(found)
    runner.teardown_databases(databases)
    failed = {_name(test): _reason(text) for test, text in [*result.failures, *result.errors]}
    print(
        json.dumps(
            {
                "run": result.testsRun,
                "failed": failed,
                "enqueued": sorted(name for name in ENQUEUED if name),
                "jobs": sum(ENQUEUED.values()),
                "states": STATES,
            }
        )
    )
    return 0


class _Named(unittest.TextTestResult):
    """Notes which test runs."""

    def startTest(self, test: Any) -> None:  # noqa: N802  # unittest's name
        RUNNING[0] = _name(test)
        super().startTest(test)


def _reason(text: str) -> str:
    """The error at the end of a traceback, in one line."""
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "\t"))]
    return lines[-1] if lines else text


def _name(test: Any) -> str:
    return str(getattr(test, "test_case", test).id())


def __getattr__(name: str) -> Any:
    """`wagtail_tests.Worked`, made when Django asks for it: its base class needs the settings."""
    if name != "Worked":
        raise AttributeError(name)
    main_module = sys.modules["__main__"]
    from winch.integrations.django.backend import WinchBackend
    from winch.integrations.django.stores import NOW, Store

    class Worked(WinchBackend):
        """Winch with a worker that runs the job before `enqueue` returns. The job is stored at once: the
        test's transaction never commits."""

        is_running = False

        @property
        def store(self) -> Store:
            return Store(main_module.APP, "default", NOW)

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            test = main_module.RUNNING[0]
            main_module.ENQUEUED[test] = main_module.ENQUEUED.get(test, 0) + 1
            if not Worked.is_running:  # else the job is one that a handler has enqueued
                Worked.is_running = True
                try:
                    main_module.WORLD.run_all()
                finally:
                    Worked.is_running = False
                result.refresh()
                states = main_module.STATES
                states[str(result.status)] = states.get(str(result.status), 0) + 1
            return result

    globals()["Worked"] = Worked
    return Worked


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
