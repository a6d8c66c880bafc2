"""What the memory store holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from winch.core.job import JobRecord
from winch.core.policy.queue_settings import QueueRule
from winch.drivers.memory.gate_state import Gates
from winch.storage.decide.schedules import ScheduleRow, ScheduleRun
from winch.storage.params import Event, NewSession
from winch.storage.parcels import Parcel


@dataclass
class Session:
    info: NewSession
    started_at: datetime
    lease_until: datetime
    beats: int = 0
    ended_at: datetime | None = None
    end_reason: str | None = None


@dataclass
class Signal:
    payload: str
    sent_at: datetime
    taken_by: tuple[str, str] | None = None


@dataclass
class Waiting:
    """One job's waits: keys and whether each is enough."""

    keys: dict[str, bool]
    until: datetime | None


@dataclass
class WaitState:
    signals: dict[tuple[str, str], Signal] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    rechecks: list[str] = field(default_factory=list)


@dataclass
class ScheduleState:
    """`rows` have their own definitions; which one is in effect follows from the live sessions."""

    rows: dict[str, ScheduleRow] = field(default_factory=dict)
    runs: dict[str, dict[datetime, ScheduleRun]] = field(default_factory=dict)


@dataclass
class ParcelState:
    """By move: the open parcel, and the numbers of the last that left and came. And the fence."""

    open: dict[str, Parcel] = field(default_factory=dict)
    last_out: dict[str, int] = field(default_factory=dict)
    last_in: dict[str, int] = field(default_factory=dict)
    fence: int = 0


@dataclass
class State:
    """All that the store holds."""

    live: dict[str, JobRecord] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)  # ready jobs' places in their queues
    archive: dict[str, JobRecord] = field(default_factory=dict)
    drop_at: dict[str, datetime] = field(default_factory=dict)
    note_numbers: dict[str, tuple[str, int]] = field(default_factory=dict)  # job -> token and number
    sessions: dict[str, Session] = field(default_factory=dict)
    paused: dict[str, tuple[datetime, str | None]] = field(default_factory=dict)
    rules: dict[str, QueueRule] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    records: dict[tuple[str, str], tuple[str, datetime | None]] = field(default_factory=dict)
    changes: Counter[str] = field(default_factory=Counter)
    kept_keys: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    schedules: ScheduleState = field(default_factory=ScheduleState)
    waits: WaitState = field(default_factory=WaitState)
    parcels: ParcelState = field(default_factory=ParcelState)

    def __post_init__(self) -> None:
        self.gates: Gates = Gates(self.live, self.keys)
