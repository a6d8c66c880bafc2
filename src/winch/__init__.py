"""Winch: background jobs that are never lost and never run twice unseen.

import winch

app = winch.App()

@app.task
def add(a: int, b: int) -> int:
    return a + b

job = add.enqueue(1, b=2)
"""

from winch.app import App
from winch.core.errors import (
    ConfigError,
    DuplicateJob,
    EnqueueUncertain,
    InvalidPayload,
    InvalidTransition,
    JobFailed,
    JobNotFound,
    LostClaim,
    MissingKey,
    PayloadTooLarge,
    QueueFull,
    SchemaMismatch,
    StorageError,
    StorageFull,
    StorageUnavailable,
    UnknownTask,
    WinchError,
)
from winch.core.lifecycle import JobState
from winch.core.outcome import Cancel, Discard, RetryAfter, Snooze
from winch.core.retry import Retry
from winch.engine.context import Context
from winch.engine.events import JobEvent
from winch.engine.handle import Job
from winch.engine.injection import INJECTED, Depends
from winch.engine.keyring import Keyring
from winch.engine.middleware import Middleware
from winch.engine.task import Task

__all__ = [
    "INJECTED",
    "App",
    "Cancel",
    "ConfigError",
    "Context",
    "Depends",
    "Discard",
    "DuplicateJob",
    "EnqueueUncertain",
    "InvalidPayload",
    "InvalidTransition",
    "Job",
    "JobEvent",
    "JobFailed",
    "JobNotFound",
    "JobState",
    "Keyring",
    "LostClaim",
    "Middleware",
    "MissingKey",
    "PayloadTooLarge",
    "QueueFull",
    "Retry",
    "RetryAfter",
    "SchemaMismatch",
    "Snooze",
    "StorageError",
    "StorageFull",
    "StorageUnavailable",
    "Task",
    "UnknownTask",
    "WinchError",
]
