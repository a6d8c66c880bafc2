"""The records and handles that the public API takes and returns, for annotations and middleware."""

from __future__ import annotations

from winch.areas import JobList
from winch.core.cron import Dst
from winch.core.duration import Duration
from winch.core.errors import type_name
from winch.core.flow import FLOW_HEADER, FlowNote
from winch.core.gates import GateSpec
from winch.core.job import Claim, Entry, Failure, JobRecord, Note
from winch.core.lifecycle import FINAL, JobState
from winch.core.outcome import Directive
from winch.core.queue_settings import OnFull, Order, QueueSettings
from winch.core.redact import mask_text
from winch.core.retry import StoredRetry
from winch.core.schedule import Misfire, Overlap, Timing
from winch.core.unique import Duplicate, Until
from winch.engine.audit import AuditLine
from winch.engine.context import AttemptLog
from winch.engine.dead import Refusal, Replayed
from winch.engine.events import JobEvent
from winch.engine.flow_look import FlowInfo
from winch.engine.flows import Batch, Flow, FlowHandle, Node, Tail
from winch.engine.idempotency import Once
from winch.engine.preflight import Misfit, Preflight
from winch.engine.queue_purge import Purged
from winch.engine.schedule_records import Run, Schedule
from winch.engine.sinks import Message
from winch.engine.task import (
    AsyncContextTask,
    AsyncTask,
    Bound,
    CollectingTask,
    ContextTask,
    Partial,
    Using,
)
from winch.engine.transaction import Transaction
from winch.storage.params import (
    ClaimRef,
    DeadGroup,
    Enqueued,
    Finish,
    LimitInfo,
    NewJob,
    QueueInfo,
    SessionInfo,
    Wait,
)
from winch.storage.schedules import SCHEDULE_HEADER, Definition, RunKind

__all__ = [
    "FINAL",
    "FLOW_HEADER",
    "SCHEDULE_HEADER",
    "AsyncContextTask",
    "AsyncTask",
    "AttemptLog",
    "AuditLine",
    "Batch",
    "Bound",
    "Claim",
    "ClaimRef",
    "CollectingTask",
    "ContextTask",
    "DeadGroup",
    "Definition",
    "Directive",
    "Dst",
    "Duplicate",
    "Duration",
    "Enqueued",
    "Entry",
    "Failure",
    "Finish",
    "Flow",
    "FlowHandle",
    "FlowInfo",
    "FlowNote",
    "GateSpec",
    "JobEvent",
    "JobList",
    "JobRecord",
    "JobState",
    "LimitInfo",
    "Message",
    "Misfire",
    "Misfit",
    "NewJob",
    "Node",
    "Note",
    "OnFull",
    "Once",
    "Order",
    "Overlap",
    "Partial",
    "Preflight",
    "Purged",
    "QueueInfo",
    "QueueSettings",
    "Refusal",
    "Replayed",
    "Run",
    "RunKind",
    "Schedule",
    "SessionInfo",
    "StoredRetry",
    "Tail",
    "Timing",
    "Transaction",
    "Until",
    "Using",
    "Wait",
    "mask_text",
    "type_name",
]
