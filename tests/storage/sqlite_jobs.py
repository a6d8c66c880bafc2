"""Jobs and sessions for tests of the SQLite driver."""

from __future__ import annotations

from datetime import timedelta

from winch.core.values.ids import job_id, random_id
from winch.storage.params import (
    NewJob,
    NewSession,
)

_ids = iter(range(1, 1_000_000))


def make_id() -> str:
    return job_id(next(_ids), bytes(8))


def make_token() -> str:
    return random_id(next(_ids).to_bytes(16, "big"))


def make_job(**fields: object) -> NewJob:
    values: dict[str, object] = {"id": make_id(), "task": "mail.send", "args": "{}", **fields}
    return NewJob(**values)  # type: ignore[arg-type]  # fields of any type, by name


def make_session(**fields: object) -> NewSession:
    values: dict[str, object] = {
        "id": make_token(),
        "worker": "w",
        "host": "h",
        "pid": 1,
        "release": "1",
        "queues": ("default",),
        "tasks": ("mail.send",),
        "slots": 4,
        "lease": timedelta(seconds=30),
        **fields,
    }
    return NewSession(**values)  # type: ignore[arg-type]  # fields of any type, by name
