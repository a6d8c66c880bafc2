"""The protocol holds in every scope, and every design known to be broken is caught there."""

from __future__ import annotations

import sys

import pytest

from tests.model import broken
from tests.model.broken_http import BROKEN_HTTP
from tests.model.broken_rules import BROKEN_RULES
from tests.model.designs import HOLDS, Case
from tests.model.explore import render

# A longer trace is hard to read; look for a smaller scope.
LONGEST_TRACE = 15
BROKEN = (*broken.BROKEN, *BROKEN_HTTP, *BROKEN_RULES)


def titles(case: Case) -> str:
    return case.title


@pytest.mark.parametrize("case", HOLDS, ids=titles)
def test_design_holds_in_every_state(case: Case) -> None:
    report = case.walk()
    sys.stdout.write(f"{case.title}: {report.states} states, {report.steps} steps\n")
    assert report.holds, f"{case.title}: {report.states} states\n{render(report)}"
    missed = [words for words in case.events if not any(words in label for label in report.labels)]
    assert not missed, f"{case.title}: the walk of {report.states} states never met {missed}"


@pytest.mark.parametrize("case", BROKEN, ids=titles)
def test_broken_design_is_caught_with_a_short_trace(case: Case) -> None:
    report = case.walk()
    assert report.breach is case.breaks, f"{case.title}: {render(report)}"
    assert len(report.trace) - 1 <= LONGEST_TRACE, render(report)


def test_broken_designs_are_walked_where_the_protocol_holds() -> None:
    sound = {case.scope for case in HOLDS if case.design == "the protocol"}
    assert {case.scope for case in BROKEN} <= sound
