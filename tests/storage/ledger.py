"""A tiny model of any store: which jobs exist, which claim owns which, what may never happen.

It knows nothing of how a driver works, so the reference implementation can be checked by it too.
"""

from __future__ import annotations

from tests.storage.gated import SLOW
from winch.core.gates.uses import (
    gates_of,
)
from winch.core.job import Claim, JobRecord
from winch.core.lifecycle import TRANSITIONS, JobState
from winch.storage.params import (
    Acted,
    Answer,
    ClaimRef,
)


class Ledger:
    """What must hold of any store, written down from what it answered."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self.sessions: dict[str, str] = {}  # of the owners
        self.claims: set[ClaimRef] = set()
        self.fences: dict[str, int] = {}
        self.states: dict[str, JobState] = {}  # of every job that must exist
        self.retried: set[str] = set()  # in the step that is being taken
        self.starts: list[int] = []  # of the jobs under the sliding rate, while no clock was set back

    def stored(self, new_id: str, *, is_new: bool) -> None:
        assert is_new is (new_id not in self.states), "a job is new exactly if there was none"
        if is_new:
            self.states[new_id] = JobState.READY
            self.fences.pop(new_id, None)

    def claimed(self, claim: Claim, session: str) -> None:
        ref = ClaimRef(claim.id, claim.token)
        assert self.states[claim.id] is JobState.READY, "only ready jobs are claimed"
        assert claim.id not in self.owners, "one live owner per job"
        assert ref not in self.claims, "a token is never given twice"
        assert claim.fence > self.fences.get(claim.id, 0), "the fence grows with every claim"
        assert claim.attempt >= 1
        self.claims.add(ref)
        self.owners[claim.id] = claim.token
        self.sessions[claim.id] = session
        self.fences[claim.id] = claim.fence

    def started(self, claim: Claim, now: int) -> None:
        """Note the start of a job under a sliding rate: no stretch of a minute has more of them than
        the rate allows, wherever it begins."""
        if SLOW in gates_of(claim.options):
            self.starts.append(now)
            within = sum(now - SLOW.per < start <= now for start in self.starts)
            assert within <= SLOW.n, "no stretch of a rate has more than its number"

    def owns(self, ref: ClaimRef) -> bool:
        return self.owners.get(ref.id) == ref.token

    def holds(self, session: str, ref: ClaimRef) -> bool:
        return self.owns(ref) and self.sessions[ref.id] == session

    def ended(self, ref: ClaimRef) -> None:
        assert self.owns(ref), "only the live claim is ended"
        del self.owners[ref.id], self.sessions[ref.id]

    def answered(self, ref: ClaimRef, answer: Answer) -> None:
        assert (answer is Answer.TOOK) is self.owns(ref), "a write takes exactly if its claim is live"
        if answer is Answer.TOOK:
            self.ended(ref)

    def acted(self, verb: str, act: Acted) -> None:
        before = self.states.get(act.id)
        assert act.state == before, "an operator gets the state before the change"
        is_allowed = before is not None and before in TRANSITIONS[verb]
        assert act.took is (is_allowed and act.holder is None)
        if act.holder is not None:
            assert verb == "retry", "only a retry needs a key"
            assert not self.states[act.holder].is_final, "only a live job holds a key"
        if act.took and verb == "retry":
            self.retried.add(act.id)
        if act.took and verb == "delete":
            del self.states[act.id]

    def seen(self, jobs: dict[str, JobRecord]) -> None:
        """Check every job after a step."""
        assert set(jobs) == set(self.states), "no job is lost, and none comes from nowhere"
        for found, job in jobs.items():
            before = self.states[found]
            if before.is_final and found not in self.retried:
                assert job.state is before, "final stays final"
            assert (job.state is JobState.RUNNING) is (found in self.owners)
            assert job.token == self.owners.get(found)
            assert (job.finished_at is not None) is job.state.is_final
            assert job.attempt >= 0
            assert job.fence == self.fences.get(found, job.fence)
            self.states[found] = job.state
        self.retried.clear()
        held = [job.unique_key for job in jobs.values() if job.unique_key and not job.state.is_final]
        assert len(held) == len(set(held)), "at most one live job has a key"
