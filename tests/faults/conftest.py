"""Scenarios run side by side: most of a fault's time is waiting for a lease to end.

A test marked `scenario` is called in a thread, together with the others so marked, when the first of
them is due; each test then waits for its own. Scenarios share no state but a PostgreSQL server, and in
it each has a database of its own. What must not be disturbed (measurements) runs before them.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.faults.stage import MEASURED

SIDE_BY_SIDE = int(os.environ.get("WINCH_FAULTS_AT_ONCE", "4"))
_futures = pytest.StashKey[dict[str, "Future[None]"]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "scenario: runs in a thread, side by side with its like")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("scenario") is not None)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if pyfuncitem.get_closest_marker("scenario") is None:
        return None
    session = pyfuncitem.session
    if _futures not in session.stash:
        session.stash[_futures] = _start_all(session, pyfuncitem)
    session.stash[_futures][pyfuncitem.nodeid].result()
    return True


def _start_all(session: pytest.Session, first: pytest.Function) -> dict[str, Future[None]]:
    pool = ThreadPoolExecutor(SIDE_BY_SIDE, "scenario")
    found: dict[str, Future[None]] = {}
    for item in session.items:
        if item.get_closest_marker("scenario") is not None:
            assert isinstance(item, pytest.Function)
            found[item.nodeid] = pool.submit(item.obj, **_arguments(item, first))
    pool.shutdown(wait=False)
    return found


def _arguments(item: pytest.Function, first: pytest.Function) -> dict[str, Any]:
    """A scenario takes parameters and fixtures of the session, which the first one has brought up."""
    given: dict[str, Any] = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    return {
        name: given[name] if name in given else first.funcargs[name]
        for name in item._fixtureinfo.argnames
    }


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if MEASURED:
        terminalreporter.section("what the faults came to")
        for line in sorted(MEASURED):
            terminalreporter.line(line)
