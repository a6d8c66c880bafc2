"""What a call may not carry when its job becomes part of something larger: a composition or a parent."""

from __future__ import annotations

from typing import Any

from winch.core.errors import ConfigError
from winch.engine.tasks.task import Bound


def check_part(call: Bound[Any], of: str) -> None:
    """Refuse options that only a job of its own can keep. `of` names the whole."""
    given = call.options
    name = call.task.name
    if given.id is not None:
        raise ConfigError(
            f"{name}: a job of {of} takes no id=, got {given.id}; Winch derives its id, so that a "
            "repeat stores it once"
        )
    if given.conn is not None:
        raise ConfigError(
            f"{name}: a job of {of} takes no conn=; pass conn= where the whole is enqueued"
        )
    if given.unique is not None or call.task.options.unique is not None:
        raise ConfigError(
            f"{name}: a job of {of} takes no unique key, because a duplicate would make it wait for a "
            "job of another owner; enqueue it alone, or use a task without unique="
        )
