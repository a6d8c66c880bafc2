"""Finishes that claim, with one rule taken out: the cases must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.storage.test_broken_fence import rewritten
from winch.drivers.memory.gate_state import Gates
from winch.drivers.memory.verbs.finish import FinishVerbs
from winch.drivers.sqlite.statements import SQL
from winch.testing.conformance import (
    MemoryTarget,
    SqliteTarget,
    Target,
    all_cases,
    run,
)

CASES = [case for case in all_cases() if case.family == "next_members"]


def claims_after_any_answer(patch: pytest.MonkeyPatch, _: pytest.FixtureRequest) -> Target:
    broken = rewritten(
        "winch.drivers.memory.verbs.finish",
        "strict=True) if answer is Answer.TOOK]",
        "strict=True)]",
    )
    patch.setattr(FinishVerbs, "finish_and_claim", broken.FinishVerbs.finish_and_claim)
    return MemoryTarget()


def reads_no_turn_in_memory(patch: pytest.MonkeyPatch, _: pytest.FixtureRequest) -> Target:
    broken = rewritten("winch.drivers.memory.gate_state", "look.turn is None and look.head", "look.head")
    patch.setattr(Gates, "next_members", broken.Gates.next_members)
    return MemoryTarget()


def reads_no_turn_in_sqlite(patch: pytest.MonkeyPatch, _: pytest.FixtureRequest) -> Target:
    statement = SQL["finish_and_claim"]
    line = "AND NOT EXISTS (SELECT 1 FROM winch_permit WHERE gate = 'fifo:' || left_by.fifo"
    line += " AND token IS NULL)"
    assert statement.text.count(line) == 1
    patch.setitem(SQL, statement.name, replace(statement, text=statement.text.replace(line, "")))
    return SqliteTarget()


Break = Callable[[pytest.MonkeyPatch, pytest.FixtureRequest], Target]
BREAKS: list[tuple[Break, str]] = [
    (claims_after_any_answer, "a_finish_that_comes_after_its_own_repeat_claims_nothing"),
    (reads_no_turn_in_memory, "a_dead_member_goes_on_unless_its_key_blocks"),
    (reads_no_turn_in_sqlite, "a_dead_member_goes_on_unless_its_key_blocks"),
]


@pytest.mark.parametrize("break_rule, case", BREAKS, ids=lambda one: getattr(one, "__name__", one))
def test_the_suite_notices_a_missing_rule(
    break_rule: Break, case: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    report = run(break_rule(monkeypatch, request), CASES)
    assert case in {result.case.name for result in report.failed}
