"""Jobs that others still need are neither pruned nor trimmed: members of an open flow, children."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from winch.core.flow import FLOW_HEADER, INPUTS_HEADER, Edge, Inputs, member_id, members_prefix
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.storage.decide.waits import AWAITED_HEADER, all_key, job_key
from winch.storage.params import Wait
from winch.testing.conformance.bench import HOUR, SECOND, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.jobs.waits import after, unblock

LONG = timedelta(days=10)


class OpenFlow:
    """Members that are kept for an hour, and a callback that waits for all of them."""

    def __init__(self, bench: Bench, count: int) -> None:
        self.bench = bench
        flow = bench.new_id()
        key = all_key(members_prefix(flow, "0"))
        headers = {FLOW_HEADER: flow, AWAITED_HEADER: key}
        members = [
            bench.new_job(id=member_id(flow, "0", n), queue="members", headers=headers, keep=HOUR)
            for n in range(count)
        ]
        inputs = msgspec.json.encode(Inputs(flow, (Edge("0", count),))).decode()
        callback = bench.new_job(
            id=member_id(flow, "1"), queue="callbacks", headers={INPUTS_HEADER: inputs}, keep=HOUR
        )
        bench.enqueue(*members)
        after(bench, [callback], (callback.id, [Wait(key)]))
        self.ids: list[str] = [member.id for member in members]
        self.claims: list[Claim] = bench.claim("members", limit=count)
        self.callback: str = callback.id

    def are_there(self) -> list[bool]:
        return [found is not None for found in self.bench.find(*self.ids)]

    def call_back(self) -> None:
        """The callback runs, and the flow is over."""
        unblock(self.bench)
        self.bench.complete(self.bench.take("callbacks"))


@case()
def members_are_kept_while_others_of_their_flow_wait_for_them(bench: Bench) -> None:
    flow = OpenFlow(bench, 3)
    first, second, last = flow.claims
    bench.complete(first)
    bench.finish(bench.outcome(second, JobState.DEAD))
    bench.advance(LONG)  # the callback is blocked
    assert bench.prune() == 0
    bench.complete(last)
    unblock(bench)
    bench.advance(LONG)  # it is ready, and no worker claims it
    assert bench.get(flow.callback).state is JobState.READY
    assert bench.prune() == 0
    claim = bench.take("callbacks")
    bench.advance(LONG)  # it runs
    assert bench.prune() == 0
    assert flow.are_there() == [True, True, True]
    bench.complete(claim)
    bench.advance(LONG)
    assert bench.prune() == 4
    assert flow.are_there() == [False, False, False]


@case()
def members_of_a_flow_that_is_over_go_in_their_time(bench: Bench) -> None:
    flow, other = OpenFlow(bench, 2), OpenFlow(bench, 2)
    bench.finish(*(bench.outcome(claim) for claim in (*flow.claims, *other.claims)))
    unblock(bench)
    (claim,) = (claim for claim in bench.claim("callbacks", limit=2) if claim.id == flow.callback)
    bench.finish(bench.outcome(claim, JobState.CANCELLED, what="cancelled"))
    bench.advance(LONG)
    assert bench.prune() == 3
    assert flow.are_there() == [False, False]
    assert other.are_there() == [True, True]


@case()
def what_is_kept_for_others_keeps_nothing_else(bench: Bench) -> None:
    """However many of them come first, and however few are asked for at once."""
    flow = OpenFlow(bench, 5)
    bench.finish(*(bench.outcome(claim) for claim in flow.claims))
    bench.advance(SECOND)
    plain = bench.make_job(JobState.COMPLETED, keep=HOUR)
    bench.advance(LONG)
    assert sum(bench.prune(limit=2) for _ in range(6)) == 1
    assert bench.find(plain.id) == [None]
    assert flow.are_there() == [True] * 5


@case()
def children_are_kept_while_their_parent_is_live(bench: Bench) -> None:
    parent = bench.get(bench.add(queue="parents"))
    headers = {AWAITED_HEADER: parent.id}
    child, dead = (bench.new_job(queue="children", headers=headers, keep=HOUR) for _ in range(2))
    bench.enqueue(child, dead)
    waits = (Wait(job_key(child.id)), Wait(job_key(dead.id)))
    bench.finish(bench.outcome(bench.take("parents"), JobState.BLOCKED, what="waited", waits=waits))
    for claim in bench.claim("children", limit=2):
        bench.finish(bench.outcome(claim, JobState.DEAD if claim.id == dead.id else JobState.COMPLETED))
    unblock(bench)
    bench.advance(LONG)
    assert bench.prune() == 0
    assert bench.trim(count=0) == 0
    assert None not in bench.find(child.id, dead.id)
    bench.complete(bench.take("parents"))
    bench.advance(LONG)
    assert bench.prune() == 3
    assert bench.find(child.id, dead.id) == [None, None]


@case()
def a_dead_member_is_not_trimmed_while_its_flow_is_open(bench: Bench) -> None:
    flow = OpenFlow(bench, 4)
    died = []
    for claim in flow.claims:
        bench.finish(bench.outcome(claim, JobState.DEAD))
        bench.advance(SECOND)
        died.append(bench.kill().id)
        bench.advance(SECOND)
    assert bench.trim(count=0, is_dry_run=True) == 4
    assert bench.trim(count=0, bytes=0, older_than=SECOND, is_dry_run=True) == 4
    assert bench.trim(count=0, limit=2) == 2
    assert bench.trim(older_than=SECOND, limit=1) == 1
    assert bench.trim(bytes=0, limit=2) == 1
    assert bench.find(*died) == [None] * 4
    assert flow.are_there() == [True] * 4
    flow.call_back()
    assert bench.trim(count=1) == 3
    assert flow.are_there() == [False, False, False, True]
