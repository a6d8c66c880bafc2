"""The store keeps results as JSON; callers get the type that the task's return annotation names."""

from __future__ import annotations

import types
import typing
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core.errors import ConfigError, ResultMismatch, within
from winch.core.outcome import Directive
from winch.core.values import codec

if TYPE_CHECKING:
    from winch.engine.tasks.task import Task


def dumps(task: Task[Any, Any], value: Any) -> str:
    """A handler's result as JSON text; raises InvalidPayload where callers would get another type."""
    text = codec.dumps_result(value)
    if codec.holds_changing(value):
        try:
            stored = typed(task, codec.loads(text, what="the result"), "")
        except (ResultMismatch, ConfigError):
            return text  # callers get the error when they read it
        codec.check_kept(value, stored, f"the result of {task.name}")
    return text


def typed(task: Task[Any, Any], value: Any, job_id: str) -> Any:
    """The plain JSON value in the type of the task's annotation; raises ResultMismatch, which carries
    it."""
    if value is None:  # nothing was returned, or the handler chose its outcome by returning it
        return None
    return converted(value, task.arguments.returns, f"the result of job {job_id} ({task.name})")


def converted(value: Any, hint: Any, what: str) -> Any:
    """Plain JSON data as this type; raises ResultMismatch where it does not fit."""
    wanted = _without_outcomes(hint)
    # A handler without a result of its own may still set one: `tx.result` of `ctx.transaction()`.
    if wanted in (Any, None, types.NoneType):
        return value
    try:
        return msgspec.convert(value, wanted, str_keys=True, dec_hook=codec.dec_hook)
    except msgspec.ValidationError as error:
        words = within(str(error).replace("`", ""))
        raise ResultMismatch(
            f"{what} does not fit its annotation {_name(hint)}: {words}", value
        ) from error
    except TypeError as error:  # msgspec cannot read this type at all, two dataclasses in a union, say
        raise ResultMismatch(
            f"{what} cannot be read as its annotation {_name(hint)}: {error}. Annotate a type that "
            "JSON can become (a dataclass, a msgspec.Struct, a pydantic model, plain data)",
            value,
        ) from error


def _without_outcomes(hint: Any) -> Any:
    """The type of what is stored: a handler that returns Snooze or Cancel stores no result by that."""
    if hint is object or hint is typing.NoReturn or isinstance(hint, typing.TypeVar):
        return Any
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    given = typing.get_args(hint)
    kept = tuple(one for one in given if not (isinstance(one, type) and issubclass(one, Directive)))
    if len(kept) == len(given):
        return hint
    return typing.Union[kept] if kept else Any  # noqa: UP007  # its parts are only known now


def _name(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint)
