from __future__ import annotations

import pytest

from winch.core.errors import InvalidTransition
from winch.core.job import KEEP
from winch.core.lifecycle import (
    ENQUEUED,
    FINAL,
    LIVE,
    TRANSITIONS,
    WAITING,
    JobState,
    after_claim,
    allowed,
    sources,
)


def test_every_state_is_live_or_final() -> None:
    assert set(JobState) == LIVE | FINAL
    assert not LIVE & FINAL
    assert LIVE - {JobState.RUNNING} == WAITING
    assert {state for state in JobState if state.is_final} == FINAL


def test_final_stays_final_but_for_an_operators_retry() -> None:
    for verb, table in TRANSITIONS.items():
        for state in FINAL & set(table):
            assert verb in ("retry", "delete", "prune")
            if verb != "retry":
                assert table[state] == frozenset()


def test_only_a_claim_makes_a_job_run() -> None:
    for verb, table in TRANSITIONS.items():
        for state, targets in table.items():
            if JobState.RUNNING in targets:
                assert verb == "claim" or state is JobState.RUNNING


def test_only_the_verbs_of_a_claim_and_a_request_touch_a_running_job() -> None:
    assert set(allowed(JobState.RUNNING)) == {"finish", "release", "crash", "rescue", "cancel"}


def test_every_state_can_be_reached() -> None:
    reached = set(ENQUEUED)
    while True:
        further = {
            target
            for table in TRANSITIONS.values()
            for state, targets in table.items()
            if state in reached
            for target in targets
        }
        if further <= reached:
            break
        reached |= further
    assert reached == set(JobState)


def test_every_live_state_leads_to_an_end() -> None:
    ends = set(FINAL)
    for _ in JobState:
        ends |= {state for table in TRANSITIONS.values() for state, to in table.items() if to & ends}
    assert ends == set(JobState)


def test_sources_and_allowed_are_two_views_of_one_table() -> None:
    for verb, table in TRANSITIONS.items():
        assert set(sources(verb)) == set(table)
        assert list(sources(verb)) == [state for state in JobState if state in table]
    for state in JobState:
        assert set(allowed(state)) == {verb for verb in TRANSITIONS if state in sources(verb)}


@pytest.mark.parametrize("wanted", JobState)
def test_a_requested_cancel_beats_what_is_not_final(wanted: JobState) -> None:
    assert after_claim(wanted, cancel_requested=False) is wanted
    expected = wanted if wanted.is_final else JobState.CANCELLED
    assert after_claim(wanted, cancel_requested=True) is expected


def test_each_final_state_has_a_keeping_time() -> None:
    assert set(KEEP) == FINAL


def test_a_refused_transition_lists_the_allowed_ones() -> None:
    error = InvalidTransition("41", "completed", "cancel", sources("cancel"))
    assert str(error) == (
        "job 41 is completed; cancel needs one of: scheduled, blocked, ready, running, retrying"
    )
