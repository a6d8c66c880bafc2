"""Winch: background jobs that are never lost and never silently run twice.

    import winch

    app = winch.App()

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    job = add.enqueue(1, b=2)

A worker runs the job: `winch worker -A module:app`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winch.app import App
    from winch.areas.sinks import HttpSink, Message, RedisSink, Sink
    from winch.core.errors import (
        ChildFailed,
        ConfigError,
        DeliveryRefused,
        DuplicateJob,
        EndpointNotFound,
        EnqueueUncertain,
        FlowFailed,
        FlowNotFound,
        HistoryMismatch,
        InvalidPayload,
        InvalidTransition,
        JobCancelled,
        JobCrashed,
        JobFailed,
        JobNotFound,
        JobRescued,
        JobTimeout,
        LostClaim,
        MissingKey,
        PayloadTooLarge,
        QueueFull,
        ResultMismatch,
        ScheduleNotFound,
        SchemaMismatch,
        SignalTimeout,
        StepFailed,
        StorageError,
        StorageFull,
        StorageUnavailable,
        UnknownTask,
        WinchError,
    )
    from winch.core.lifecycle import JobState
    from winch.core.outcome import Cancel, Discard, RetryAfter, Snooze
    from winch.core.policy.limits import Breaker, Fifo, Limit, Rate, RetryBudget
    from winch.core.policy.retention import Retention
    from winch.core.policy.retry import Retry
    from winch.core.policy.unique import Unique
    from winch.core.version import __version__
    from winch.engine.base.encryption import Keyring
    from winch.engine.client.job import Job
    from winch.engine.flows.batch import batch
    from winch.engine.flows.compose import chain, chord, flow, group, map_
    from winch.engine.tasks.collecting import Collected
    from winch.engine.tasks.context import Context
    from winch.engine.tasks.events import JobEvent
    from winch.engine.tasks.injection import INJECTED, Depends
    from winch.engine.tasks.middleware import Middleware
    from winch.engine.tasks.schedules import Schedule
    from winch.engine.tasks.task import Task

__all__ = [
    "INJECTED",
    "App",
    "Breaker",
    "Cancel",
    "ChildFailed",
    "Collected",
    "ConfigError",
    "Context",
    "DeliveryRefused",
    "Depends",
    "Discard",
    "DuplicateJob",
    "EndpointNotFound",
    "EnqueueUncertain",
    "Fifo",
    "FlowFailed",
    "FlowNotFound",
    "HistoryMismatch",
    "HttpSink",
    "InvalidPayload",
    "InvalidTransition",
    "Job",
    "JobCancelled",
    "JobCrashed",
    "JobEvent",
    "JobFailed",
    "JobNotFound",
    "JobRescued",
    "JobState",
    "JobTimeout",
    "Keyring",
    "Limit",
    "LostClaim",
    "Message",
    "Middleware",
    "MissingKey",
    "PayloadTooLarge",
    "QueueFull",
    "Rate",
    "RedisSink",
    "ResultMismatch",
    "Retention",
    "Retry",
    "RetryAfter",
    "RetryBudget",
    "Schedule",
    "ScheduleNotFound",
    "SchemaMismatch",
    "SignalTimeout",
    "Sink",
    "Snooze",
    "StepFailed",
    "StorageError",
    "StorageFull",
    "StorageUnavailable",
    "Task",
    "Unique",
    "UnknownTask",
    "WinchError",
    "__version__",
    "batch",
    "chain",
    "chord",
    "flow",
    "group",
    "map_",
]

# Imported when first used: a program that needs one part of the package (pytest, which loads the
# plugin in every run of every project that has Winch installed) does not wait for all of it.
_HOMES = {
    "INJECTED": "winch.engine.tasks.injection",
    "App": "winch.app",
    "Cancel": "winch.core.outcome",
    "ChildFailed": "winch.core.errors",
    "Collected": "winch.engine.tasks.collecting",
    "ConfigError": "winch.core.errors",
    "Context": "winch.engine.tasks.context",
    "Depends": "winch.engine.tasks.injection",
    "Discard": "winch.core.outcome",
    "DeliveryRefused": "winch.core.errors",
    "DuplicateJob": "winch.core.errors",
    "EnqueueUncertain": "winch.core.errors",
    "FlowFailed": "winch.core.errors",
    "FlowNotFound": "winch.core.errors",
    "HistoryMismatch": "winch.core.errors",
    "HttpSink": "winch.areas.sinks",
    "InvalidPayload": "winch.core.errors",
    "InvalidTransition": "winch.core.errors",
    "JobCancelled": "winch.core.errors",
    "JobCrashed": "winch.core.errors",
    "Job": "winch.engine.client.job",
    "JobEvent": "winch.engine.tasks.events",
    "JobFailed": "winch.core.errors",
    "JobNotFound": "winch.core.errors",
    "JobRescued": "winch.core.errors",
    "JobTimeout": "winch.core.errors",
    "JobState": "winch.core.lifecycle",
    "Keyring": "winch.engine.base.encryption",
    "LostClaim": "winch.core.errors",
    "Message": "winch.areas.sinks",
    "Middleware": "winch.engine.tasks.middleware",
    "MissingKey": "winch.core.errors",
    "PayloadTooLarge": "winch.core.errors",
    "QueueFull": "winch.core.errors",
    "RedisSink": "winch.areas.sinks",
    "ResultMismatch": "winch.core.errors",
    "Retention": "winch.core.policy.retention",
    "Retry": "winch.core.policy.retry",
    "RetryAfter": "winch.core.outcome",
    "Schedule": "winch.engine.tasks.schedules",
    "EndpointNotFound": "winch.core.errors",
    "ScheduleNotFound": "winch.core.errors",
    "SchemaMismatch": "winch.core.errors",
    "SignalTimeout": "winch.core.errors",
    "Sink": "winch.areas.sinks",
    "Snooze": "winch.core.outcome",
    "StepFailed": "winch.core.errors",
    "StorageError": "winch.core.errors",
    "StorageFull": "winch.core.errors",
    "StorageUnavailable": "winch.core.errors",
    "Task": "winch.engine.tasks.task",
    "Unique": "winch.core.policy.unique",
    "Breaker": "winch.core.policy.limits",
    "Fifo": "winch.core.policy.limits",
    "Limit": "winch.core.policy.limits",
    "Rate": "winch.core.policy.limits",
    "RetryBudget": "winch.core.policy.limits",
    "UnknownTask": "winch.core.errors",
    "WinchError": "winch.core.errors",
    "__version__": "winch.core.version",
    "batch": "winch.engine.flows.batch",
    "chain": "winch.engine.flows.compose",
    "chord": "winch.engine.flows.compose",
    "flow": "winch.engine.flows.compose",
    "group": "winch.engine.flows.compose",
    "map_": "winch.engine.flows.compose",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
