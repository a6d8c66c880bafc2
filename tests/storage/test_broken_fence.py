"""Drivers with the fence taken out: the suite and the walks must both notice.

A test that cannot fail proves nothing. Each break is one line of a driver's `finish`: the comparison of
the token is gone, and the state alone decides, as in several queues that people use.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import hypothesis
import pytest

from tests.servers import Databases
from tests.storage.both_stores import STEADY
from tests.storage.machine import walk
from winch.drivers.memory.verbs.finish import FinishVerbs
from winch.drivers.postgres.statements import STATEMENTS
from winch.drivers.sqlite.statements import SQL
from winch.drivers.sqlite.verbs.finish import FinishVerbs as SqliteFinishVerbs
from winch.testing.conformance import (
    MemoryTarget,
    PostgresTarget,
    SqliteTarget,
    Target,
    all_cases,
    run,
)

FINISH_CASES = [case for case in all_cases() if case.family == "finish"]
# As many walks as test_machine takes, and no time spent on making the finding smaller.
HASTY = hypothesis.settings(STEADY, max_examples=100, phases=[hypothesis.Phase.generate])


def rewritten(name: str, line: str, broken: str) -> ModuleType:
    """The module of this name with one line of its source replaced; the real one stays as it is."""
    source = inspect.getsource(importlib.import_module(name))
    assert source.count(line) == 1, f"{name} has the line {source.count(line)} times: {line}"
    module = ModuleType(name)
    exec(compile(source.replace(line, broken), f"<broken {name}>", "exec"), module.__dict__)  # noqa: S102
    return module


def without_fence_in_memory(patch: pytest.MonkeyPatch, _: pytest.FixtureRequest) -> Target:
    broken = rewritten(
        "winch.drivers.memory.verbs.finish",
        "if job is None or job.state is not JobState.RUNNING or job.token != outcome.token:",
        "if job is None or job.state is not JobState.RUNNING:",
    )
    patch.setattr(FinishVerbs, "_finish_one", broken.FinishVerbs._finish_one)
    return MemoryTarget()


def without_fence_in_sqlite(patch: pytest.MonkeyPatch, _: pytest.FixtureRequest) -> Target:
    for name, line in (
        ("finish.archive", "AND winch_job.token = :token"),
        ("finish.leave", "AND token = :token"),
    ):
        statement = SQL[name]
        assert statement.text.count(line) == 1
        patch.setitem(SQL, name, replace(statement, text=statement.text.replace(line, "")))
    broken = rewritten(
        "winch.drivers.sqlite.verbs.finish",
        "if (o.id, o.token) in held}",
        "if any(key[0] == o.id for key in held)}",
    )
    patch.setattr(SqliteFinishVerbs, "finish", broken.FinishVerbs.finish)
    return SqliteTarget()


def without_fence_in_postgres(patch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Target:
    for name in ("finish", "finish.other"):
        statement = STATEMENTS[name]
        line = "AND job.token = outcome.by_token"
        assert statement.text.count(line) == 1
        text = statement.text.replace(line, "")
        if name == "finish":  # looks at the pairs once more when it deletes
            again = text.replace("WHEN (id, token) IN (", "WHEN id IN (")
            assert again != text
            text = again.replace("SELECT outcome.job, outcome.by_token", "SELECT outcome.job")
        patch.setitem(STATEMENTS, name, replace(statement, text=text))
    server: Databases = request.getfixturevalue("postgres_server")
    return PostgresTarget(server.new_store())


Break = Callable[[pytest.MonkeyPatch, pytest.FixtureRequest], Target]
BREAKS: list[Any] = [
    pytest.param(without_fence_in_memory, id="memory"),
    pytest.param(without_fence_in_sqlite, id="sqlite"),
    pytest.param(without_fence_in_postgres, id="postgres", marks=pytest.mark.servers),
]


@pytest.mark.parametrize("break_fence", BREAKS)
def test_the_suite_notices_a_missing_fence(
    break_fence: Break, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    report = run(break_fence(monkeypatch, request), FINISH_CASES)
    failed = {(result.case.name, result.mode) for result in report.failed}
    for name in (
        "swapped_tokens_are_both_lost",
        "a_repeat_is_answered_already_while_another_runs_the_job",
        "a_rescued_claim_stays_lost_while_another_runs_the_job_and_after",
    ):
        assert {(name, "sync"), (name, "async")} <= failed


@pytest.mark.parametrize("break_fence", BREAKS)
def test_the_walks_notice_a_missing_fence(
    break_fence: Break, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    # Without the reference, which is the very driver that is broken in one of the cases.
    target = break_fence(monkeypatch, request)
    with pytest.raises(AssertionError, match="a write takes exactly if its claim is live"):
        walk(target, reference=False, settings=HASTY)
    target.close()
