"""A driver put together from its families of verbs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from inspect import isfunction

from winch.storage.families import (
    ClaimVerbs,
    EnqueueVerbs,
    FinishVerbs,
    GateVerbs,
    KvVerbs,
    OperatorVerbs,
    ReadVerbs,
    ScheduleVerbs,
    SessionVerbs,
    UpkeepVerbs,
    WaitVerbs,
)


@dataclass(frozen=True, kw_only=True)
class Families:
    """One object for each family of a store: what it does is in verbs/ of that store, what it promises
    is in storage/families.py."""

    enqueue: EnqueueVerbs
    claim: ClaimVerbs
    finish: FinishVerbs
    sessions: SessionVerbs
    upkeep: UpkeepVerbs
    gates: GateVerbs
    waits: WaitVerbs
    schedules: ScheduleVerbs
    operators: OperatorVerbs
    reads: ReadVerbs
    kv: KvVerbs


_CONTRACTS = {
    "enqueue": EnqueueVerbs,
    "claim": ClaimVerbs,
    "finish": FinishVerbs,
    "sessions": SessionVerbs,
    "upkeep": UpkeepVerbs,
    "gates": GateVerbs,
    "waits": WaitVerbs,
    "schedules": ScheduleVerbs,
    "operators": OperatorVerbs,
    "reads": ReadVerbs,
    "kv": KvVerbs,
}


class ComposedDriver:
    """A driver whose verbs are the methods of its families.

    The assignments below give each verb its type. An instance gets the families' own methods by
    `_adopt`, so a call goes straight to the family.
    """

    enqueue = EnqueueVerbs.enqueue
    claim = ClaimVerbs.claim
    finish = FinishVerbs.finish
    release = FinishVerbs.release
    give_up = FinishVerbs.give_up
    crash = FinishVerbs.crash
    note = FinishVerbs.note
    standing = FinishVerbs.standing
    start_session = SessionVerbs.start_session
    beat = SessionVerbs.beat
    end_session = SessionVerbs.end_session
    held = SessionVerbs.held
    cancels = SessionVerbs.cancels
    rescue = UpkeepVerbs.rescue
    promote = UpkeepVerbs.promote
    prune = UpkeepVerbs.prune
    trim = UpkeepVerbs.trim
    admit = GateVerbs.admit
    set_limits = GateVerbs.set_limits
    rebind = GateVerbs.rebind
    limits = GateVerbs.limits
    has_gated = GateVerbs.has_gated
    signal = WaitVerbs.signal
    take_signal = WaitVerbs.take_signal
    enqueue_after = WaitVerbs.enqueue_after
    unblock = WaitVerbs.unblock
    due_schedules = ScheduleVerbs.due_schedules
    change_schedule = ScheduleVerbs.change_schedule
    schedules = ScheduleVerbs.schedules
    schedule_runs = ScheduleVerbs.schedule_runs
    cancel = OperatorVerbs.cancel
    retry = OperatorVerbs.retry
    delete = OperatorVerbs.delete
    pause = OperatorVerbs.pause
    resume = OperatorVerbs.resume
    get = ReadVerbs.get
    results = ReadVerbs.results
    list_jobs = ReadVerbs.list_jobs
    groups = ReadVerbs.groups
    counts = ReadVerbs.counts
    queues = ReadVerbs.queues
    depth = ReadVerbs.depth
    sessions = ReadVerbs.sessions
    explain = ReadVerbs.explain
    events = ReadVerbs.events
    kv_put = KvVerbs.kv_put
    kv_swap = KvVerbs.kv_swap
    kv_list = KvVerbs.kv_list
    kv_delete = KvVerbs.kv_delete

    def _adopt(self, families: Families) -> None:
        for field in fields(families):
            family = getattr(families, field.name)
            for name, verb in vars(_CONTRACTS[field.name]).items():
                if isfunction(verb) and not name.startswith("_"):
                    setattr(self, name, getattr(family, name))
