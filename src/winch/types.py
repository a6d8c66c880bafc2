"""The records and handles that the public API takes and returns, for annotations and middleware."""

from __future__ import annotations

from winch.areas.dead_groups import GroupMark
from winch.areas.flows import FlowInfo
from winch.areas.idempotency import Once
from winch.areas.jobs import JobList
from winch.areas.launch.drain import DrainReport
from winch.areas.queue_jobs import Moved, Purged
from winch.areas.replay import Refusal, Replayed
from winch.areas.scheduling.backfill import Backfilled
from winch.areas.sinks import Message
from winch.areas.webhooks.area import Subscribed
from winch.areas.webhooks.delivery_log import DeliveryAttempt
from winch.areas.webhooks.endpoints import Endpoint
from winch.areas.webhooks.redelivery import Redelivered
from winch.core.errors import type_name
from winch.core.flow import FLOW_HEADER, FlowNote
from winch.core.gates.uses import GateSpec
from winch.core.job import Claim, Entry, Failure, JobRecord, Note
from winch.core.lifecycle import FINAL, JobState
from winch.core.outcome import Directive
from winch.core.policy.calendar import Calendar, OnHoliday
from winch.core.policy.cron import Dst
from winch.core.policy.queue_limits import QueueLimit
from winch.core.policy.queue_settings import OnFull, Order, QueueSettings
from winch.core.policy.retry import StoredRetry
from winch.core.policy.schedule import Misfire, Overlap, Timing
from winch.core.policy.unique import Duplicate, Until
from winch.core.values.duration import Duration
from winch.core.values.redact import mask_text
from winch.engine.client.audit import AuditLine
from winch.engine.client.preflight import Misfit, Preflight
from winch.engine.client.worker_commands import WorkerAnswer
from winch.engine.flows.batch import Batch
from winch.engine.flows.compose import Flow, Node, Tail
from winch.engine.flows.handle import FlowHandle
from winch.engine.supervisor.worker_options import WorkerFlag, WorkerOptions, worker_flags
from winch.engine.tasks.context import AttemptLog
from winch.engine.tasks.events import JobEvent
from winch.engine.tasks.schedules import Run, Schedule
from winch.engine.tasks.task import (
    AsyncContextTask,
    AsyncTask,
    Bound,
    CollectingTask,
    ContextTask,
    Partial,
    Using,
)
from winch.engine.tasks.transaction import Transaction
from winch.storage.decide.schedules import SCHEDULE_HEADER, Definition, RunKind
from winch.storage.gate_records import KeyHolder, LimitInfo, ScopeInfo, TenantInfo
from winch.storage.params import (
    ClaimRef,
    DeadGroup,
    Enqueued,
    Finish,
    NewJob,
    QueueInfo,
    SessionInfo,
    Wait,
)

__all__ = [
    "FINAL",
    "FLOW_HEADER",
    "SCHEDULE_HEADER",
    "AsyncContextTask",
    "AsyncTask",
    "AttemptLog",
    "AuditLine",
    "Backfilled",
    "Batch",
    "Bound",
    "Calendar",
    "Claim",
    "ClaimRef",
    "CollectingTask",
    "ContextTask",
    "DeadGroup",
    "Definition",
    "DeliveryAttempt",
    "Directive",
    "DrainReport",
    "Dst",
    "Duplicate",
    "Duration",
    "Endpoint",
    "Enqueued",
    "Entry",
    "Failure",
    "Finish",
    "Flow",
    "FlowHandle",
    "FlowInfo",
    "FlowNote",
    "GateSpec",
    "GroupMark",
    "JobEvent",
    "JobList",
    "JobRecord",
    "JobState",
    "KeyHolder",
    "LimitInfo",
    "Message",
    "Misfire",
    "Misfit",
    "Moved",
    "NewJob",
    "Node",
    "Note",
    "OnFull",
    "OnHoliday",
    "Once",
    "Order",
    "Overlap",
    "Partial",
    "Preflight",
    "Purged",
    "QueueInfo",
    "QueueLimit",
    "QueueSettings",
    "Redelivered",
    "Refusal",
    "Replayed",
    "Run",
    "RunKind",
    "Schedule",
    "ScopeInfo",
    "SessionInfo",
    "StoredRetry",
    "Subscribed",
    "Tail",
    "TenantInfo",
    "Timing",
    "Transaction",
    "Until",
    "Using",
    "Wait",
    "WorkerAnswer",
    "WorkerFlag",
    "WorkerOptions",
    "mask_text",
    "type_name",
    "worker_flags",
]
