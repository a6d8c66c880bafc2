"""The checker finds what it is there to find: planted violations, each by its name."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from lab.history import Recorder, check, read
from lab.history.lines import Ended, Exited, Nemesis, Replied, Sent, Started
from lab.history.processes import RETURNING
from tests.testing.planted import PLANTED, Plant
from tests.testing.stories import LEASE, Story, correct, replace
from winch.storage.params import Event


@pytest.mark.parametrize("seed", range(20))
def test_a_correct_history_passes(seed: int) -> None:
    verdict = check(correct(seed).history())
    assert verdict.is_ok, verdict
    assert verdict.counters["recovered"] == 4
    assert verdict.counters["killed"] == 2
    assert verdict.counters["lost"] == 4
    assert verdict.counters["already"] == 2
    assert verdict.counters["rescued"] == 4
    assert len(verdict.takeovers) == 2


def test_a_crash_reported_by_its_worker_is_no_takeover() -> None:
    story = correct(1)
    story.crashes_before_its_supervisor_dies(story.session())
    verdict = check(story.history())
    assert verdict.is_ok, verdict
    assert len(verdict.takeovers) == 2


@pytest.mark.parametrize("invariant, spoil", [pytest.param(*p, id=p[1].__name__) for p in PLANTED])
@pytest.mark.parametrize("seed", range(3))
def test_a_planted_violation_is_found_by_name(invariant: str, spoil: Plant, seed: int) -> None:
    story = correct(seed)
    known = set(story.jobs)
    spoil(story, story.session())
    verdict = check(story.history())
    found = verdict.named(invariant)
    assert found, f"{invariant} was not found: {verdict}"
    assert not {violation.job for violation in found} & known, f"an innocent job is blamed: {verdict}"
    for violation in found:
        assert len(violation.evidence) <= 3
        assert violation.words in str(verdict)


def test_every_invariant_has_a_planted_violation() -> None:
    names = {"I1", "I1b", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I15", "I18"}
    names |= {"I12", "I13", "I14", "I17", "I20", "alive", "order"}
    assert {invariant for invariant, _ in PLANTED} == names
    assert len(PLANTED) >= 30


def test_a_run_without_its_requested_fault_fails() -> None:
    story = Story()
    story.plain(story.session())
    asked = story.history()
    assert [violation.invariant for violation in check(asked).violations] == ["nemesis"]
    assert check(replace(asked, expects_fault=False)).is_ok


def test_a_handler_that_failed_may_run_again() -> None:
    story = Story()
    story.fails_once(story.session())
    assert check(replace(story.history(), expects_fault=False)).is_ok


@pytest.mark.parametrize("error", ["CancelledError", "LostClaim"])
@pytest.mark.parametrize("is_killed", [True, False])
def test_a_handler_interrupted_in_its_commit_may_have_committed(error: str, is_killed: bool) -> None:
    """Three hundred transactional jobs on PostgreSQL: the answer to a COMMIT was cut, and the worker
    ended because its supervisor was killed, before it could check what had become of it."""
    story = Story()
    job, session = story.enqueue(), story.session()
    token = story.claim(job, session)
    run = story.start(job)
    story.end(run)
    story.finish(job, token)
    if is_killed:
        story.nemesis("kill", session)
    line = story.line(story.pid_of(session))
    story.lines.append(Ended(**line, run=run, job=job, token=token, is_ok=False, error=error))
    found = check(replace(story.history(), expects_fault=False)).violations
    is_excused = is_killed and error == "CancelledError"
    assert ("I6" in [one.invariant for one in found]) == (not is_excused)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_paused_process_may_begin_after_another_has_ended(is_stopped: bool) -> None:
    """F3 on PostgreSQL, seed 10: the handler was stopped before its transaction began."""
    story = Story()
    job, slow, other = story.enqueue(), story.session(), story.session()
    token = story.claim(job, slow)
    if is_stopped:
        story.nemesis("stop", slow)
    story.wait(LEASE.total_seconds() + 1)
    story.end_session(slow, "lease over")
    story.give_back(job, "rescued")
    story.run(job, other)
    line = story.line(story.pid_of(slow))
    story.lines.append(Started(**line, run="late", job=job, token=token, attempt=1))
    found = check(replace(story.history(), expects_fault=False, takeover_limit=LEASE)).violations
    assert ("alive" in [one.invariant for one in found]) == (not is_stopped)


@pytest.mark.parametrize("pause", [0.1, 1.0])
def test_an_interrupt_may_fall_between_a_handlers_last_line_and_its_return(pause: float) -> None:
    """F28 on Redis Cluster, seed 63: the line was written 4 ms before the handler was interrupted."""
    story = Story()
    job, stopping, other = story.enqueue(), story.session(), story.session()
    token = story.claim(job, stopping)
    run = story.start(job)
    story.nemesis("term", stopping)
    story.end(run)
    story.wait(pause)
    story.nemesis("hurry", stopping)
    story.give_back(job, "released", by_token=token)
    story.lines.append(Exited(**story.line(), worker=story.pid_of(stopping), code=0))
    story.run(job, other)
    found = check(story.history()).violations
    assert [one.invariant for one in found] == ([] if pause < RETURNING else ["alive"])


@pytest.mark.parametrize("pid", [0, 7])
def test_a_claim_over_http_lasts_as_long_as_its_lease_and_a_worker_as_its_process(pid: int) -> None:
    story = Story()
    job, held, other = story.enqueue(), story.session(), story.session()
    story.sessions[held] = replace(story.sessions[held], pid=pid)
    story.claim(job, held)
    story.end(story.start(job))
    story.wait(LEASE.total_seconds() + 1)
    story.end_session(held, "lease over")
    story.give_back(job, "rescued")
    story.run(job, other)
    found = check(replace(story.history(), expects_fault=False, takeover_limit=LEASE)).violations
    assert [one.invariant for one in found] == ([] if pid == 0 else ["alive"])


def test_one_claim_call_may_take_its_time_where_it_asks_several_servers() -> None:
    story = Story()
    session = story.session()
    first, second = story.plain(session), story.plain(session)
    token = next(event.token for event in story.events if event.job == first and event.token)
    mine = next(event.token for event in story.events if event.job == second and event.token)
    at = {event.kind: event.at + timedelta(seconds=1.6) for event in story.events if event.job == second}

    def replied(event: Event) -> Event:
        if event.job != second:
            return event
        mine_by = token if event.by_token == mine else event.by_token
        mine_is = token if event.token == mine else event.token
        return replace(event, token=mine_is, by_token=mine_by, at=at[event.kind])

    story.events = [replied(event) for event in story.events]
    story.lines = [
        replace(line, token=token) if getattr(line, "token", None) == mine else line
        for line in story.lines
    ]
    history = replace(story.history(), expects_fault=False)
    words = [one.words for one in check(history).violations if one.invariant == "I4"]
    assert words == ["a token was used by two claim calls"]
    assert not check(replace(history, claim_call=LEASE)).named("I4")


def test_lines_survive_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    call = recorder.sent(["a", "b"])
    recorder.replied(call, "acked", ["a", "b"], [True, False])
    recorder.nemesis("kill", [7], note="child")
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes() + b'{"type":"sent","ca')
    sent, replied, act = read(tmp_path)
    assert isinstance(sent, Sent)
    assert sent.ids == ("a", "b")
    assert isinstance(replied, Replied)
    assert replied.new == (True, False)
    assert isinstance(act, Nemesis)
    assert act.pids == (7,)
    assert abs(act.mono - sent.mono) < 5
