"""What a call may not carry when its job becomes part of something larger: a composition or a parent."""

from __future__ import annotations

from typing import Any

from winch.core.errors import ConfigError
from winch.engine.tasks.task import Bound, check_call


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


def check_member(call: Bound[Any], *, has_before: bool) -> None:
    """Refuse what cannot be a member of a composition. `has_before`: it waits for other members."""
    check_call(call, None, "a composition")
    check_part(call, "a composition")
    if has_before and (call.options.delay is not None or call.options.run_at is not None):
        raise ConfigError(
            f"{call.task.name}: a job that waits for others takes no delay= and no run_at=; it starts "
            "when they are final"
        )
