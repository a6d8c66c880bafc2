"""A driver put together from its families of verbs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from inspect import isfunction
from typing import Final

from winch.storage.families import (
    ClaimVerbs,
    EnqueueVerbs,
    FinishVerbs,
    GateVerbs,
    OperatorVerbs,
    ReadVerbs,
    ScheduleVerbs,
    SessionVerbs,
    UpkeepVerbs,
    WaitVerbs,
)
from winch.storage.kv_records import KvVerbs
from winch.storage.parcels import MoveVerbs


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
    moves: MoveVerbs


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
    "moves": MoveVerbs,
}


class ComposedDriver:
    """A driver whose verbs are the methods of its families.

    The assignments below give each verb its type. An instance gets the families' own methods by
    `_adopt`, so a call goes straight to the family.
    """

    enqueue: Final = EnqueueVerbs.enqueue
    claim: Final = ClaimVerbs.claim
    finish: Final = FinishVerbs.finish
    finish_and_claim: Final = FinishVerbs.finish_and_claim
    release: Final = FinishVerbs.release
    give_up: Final = FinishVerbs.give_up
    crash: Final = FinishVerbs.crash
    note: Final = FinishVerbs.note
    notes: Final = FinishVerbs.notes
    standing: Final = FinishVerbs.standing
    start_session: Final = SessionVerbs.start_session
    beat: Final = SessionVerbs.beat
    end_session: Final = SessionVerbs.end_session
    held: Final = SessionVerbs.held
    cancels: Final = SessionVerbs.cancels
    rescue: Final = UpkeepVerbs.rescue
    promote: Final = UpkeepVerbs.promote
    prune: Final = UpkeepVerbs.prune
    trim: Final = UpkeepVerbs.trim
    admit: Final = GateVerbs.admit
    set_limits: Final = GateVerbs.set_limits
    set_queue: Final = GateVerbs.set_queue
    limits: Final = GateVerbs.limits
    has_gated: Final = GateVerbs.has_gated
    signal: Final = WaitVerbs.signal
    take_signal: Final = WaitVerbs.take_signal
    untaken_signals: Final = WaitVerbs.untaken_signals
    forget_signals: Final = WaitVerbs.forget_signals
    enqueue_after: Final = WaitVerbs.enqueue_after
    unblock: Final = WaitVerbs.unblock
    due_schedules: Final = ScheduleVerbs.due_schedules
    change_schedule: Final = ScheduleVerbs.change_schedule
    schedules: Final = ScheduleVerbs.schedules
    schedule_runs: Final = ScheduleVerbs.schedule_runs
    cancel: Final = OperatorVerbs.cancel
    retry: Final = OperatorVerbs.retry
    delete: Final = OperatorVerbs.delete
    pause: Final = OperatorVerbs.pause
    resume: Final = OperatorVerbs.resume
    move: Final = OperatorVerbs.move
    hold_scope: Final = OperatorVerbs.hold_scope
    release_key: Final = OperatorVerbs.release_key
    get: Final = ReadVerbs.get
    results: Final = ReadVerbs.results
    list_jobs: Final = ReadVerbs.list_jobs
    groups: Final = ReadVerbs.groups
    death_counts: Final = ReadVerbs.death_counts
    tenants: Final = ReadVerbs.tenants
    scopes: Final = ReadVerbs.scopes
    unique_keys: Final = ReadVerbs.unique_keys
    counts: Final = ReadVerbs.counts
    queues: Final = ReadVerbs.queues
    depth: Final = ReadVerbs.depth
    sessions: Final = ReadVerbs.sessions
    explain: Final = ReadVerbs.explain
    events: Final = ReadVerbs.events
    kv_put: Final = KvVerbs.kv_put
    kv_swap: Final = KvVerbs.kv_swap
    kv_list: Final = KvVerbs.kv_list
    kv_delete: Final = KvVerbs.kv_delete
    move_out: Final = MoveVerbs.move_out
    move_in: Final = MoveVerbs.move_in
    move_done: Final = MoveVerbs.move_done
    raise_fence: Final = MoveVerbs.raise_fence
    enqueue_fenced: Final = MoveVerbs.enqueue_fenced
    key_holders: Final = MoveVerbs.key_holders

    def _adopt(self, families: Families) -> None:
        for field in fields(families):
            family = getattr(families, field.name)
            for name, verb in vars(_CONTRACTS[field.name]).items():
                if isfunction(verb) and not name.startswith("_"):
                    setattr(self, name, getattr(family, name))
