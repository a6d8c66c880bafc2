"""Collecting tasks: one call for many jobs, an outcome for each.

    @app.task(collect=256, collect_wait="50ms")
    def score(jobs: list[Collected[Features]]) -> None: ...

    score.enqueue(Features(height=1.8, weight=70))      # or score.enqueue(height=1.8, weight=70)

`Features` is a dataclass, a msgspec Struct, a pydantic model or a TypedDict: its fields are the job's
arguments. With `Collected[dict[str, Any]]`, or `Collected` alone, any keyword arguments are.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec

from winch.core.errors import ConfigError, InvalidPayload, did_you_mean
from winch.core.outcome import Cancel, Discard, RetryAfter, Snooze
from winch.core.values import codec
from winch.core.values.duration import Duration
from winch.engine.tasks.arguments import Arguments
from winch.engine.tasks.injection import Wanted, needs_context

T = TypeVar("T")

Ended = RetryAfter | Snooze | Discard | Cancel | BaseException


class Collected(Generic[T]):
    """One job of a collecting call: its arguments, and methods that choose its outcome.

        @app.task(collect=100)
        def index(jobs: list[winch.Collected[Page]]) -> None:
            for job in jobs:
                if job.args.is_empty:
                    job.discard("nothing to index")

    A job without an outcome of its own completes when the call returns, and fails when it raises. The
    last outcome that you choose counts.
    """

    __slots__ = ("_is_cancelled", "args", "attempt", "id", "outcome", "result")

    def __init__(
        self,
        args: T,
        *,
        id: str = "",
        attempt: int = 1,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.args: T = args
        self.id: str = id
        self.attempt: int = attempt
        self.result: Any = None
        self.outcome: Ended | typing.Literal["done"] | None = None
        self._is_cancelled = is_cancelled

    @property
    def cancelled(self) -> bool:
        """True after a cancel request for this job, or after the worker lost its claim. Skip such a
        job.
        """
        return self._is_cancelled()

    def done(self, result: Any = None) -> None:
        """Complete this job with this result."""
        self.result = result
        self.outcome = "done"

    def fail(self, error: BaseException | str) -> None:
        """Fail this job with this error; the retry policy of the task decides what happens next."""
        self.outcome = error if isinstance(error, BaseException) else RuntimeError(error)

    def retry(self, after: Duration, reason: str | None = None) -> None:
        """Retry this job after this delay. This counts as a failed attempt."""
        self.outcome = RetryAfter(after, reason)

    def snooze(self, delay: Duration, reason: str | None = None) -> None:
        """Run this job again after this delay. This costs no attempt."""
        self.outcome = Snooze(delay, reason)

    def discard(self, reason: str | None = None) -> None:
        """End this job as dead, without a retry."""
        self.outcome = Discard(reason)

    def cancel(self, reason: str | None = None) -> None:
        """Cancel this job."""
        self.outcome = Cancel(reason)

    def __repr__(self) -> str:
        return f"<Collected {self.id} attempt {self.attempt}>"


class CollectedArguments(Arguments):
    """How a collecting task's jobs are packed: the fields of what it collects are the arguments."""

    def pack(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        if len(args) > 1 or (args and kwargs):
            raise InvalidPayload(
                f"{self._task} takes one {self._item_name}, or its fields by name; got {len(args)} "
                f"positional and {len(kwargs)} keyword arguments"
            )
        value = self._given(args[0]) if args else self._made(kwargs)
        text = codec.dumps(value, what=f"the arguments of {self._task}", limit=self._max_bytes)
        self._decode(text)
        return text

    def read(self, text: str) -> Any:
        """The stored arguments as what the task collects; raises InvalidPayload."""
        return self._decode(text)

    returns: Any = Any  # each job has a result of its own, which the call's annotation is not about

    def unpack(self, text: str) -> tuple[list[Any], dict[str, Any]]:
        raise TypeError("a collecting task's jobs are read one by one")  # pragma: no cover

    @cached_property
    def injected(self) -> Wanted:
        wants: Wanted = super().injected
        if needs_context(wants):
            raise ConfigError(
                f"task {self._task} collects: one call has many jobs, so it takes no Context; "
                "each Collected has its id, attempt and outcome"
            )
        return wants

    @cached_property
    def parameter(self) -> str:
        """The one parameter that takes the collected jobs."""
        names = list(self._params)
        hint = self._hints.get(names[0]) if len(names) == 1 else None
        inner = typing.get_args(hint)
        if typing.get_origin(hint) is not list or not inner or _bare(inner[0]) is not Collected:
            raise ConfigError(
                f"task {self._task} collects, so it takes one argument, annotated list[Collected[…]]"
            )
        return names[0]

    @cached_property
    def _item(self) -> Any:
        """The type of one job's arguments; `dict` without an annotation."""
        [collected] = typing.get_args(self._hints[self.parameter])
        found: Any = next(iter(typing.get_args(collected)), dict)
        origin = typing.get_origin(found) or found
        if origin in (dict, Any):
            return dict
        if _fields(found) is None:
            raise ConfigError(
                f"task {self._task} collects {found!r}; it must be a dataclass, a msgspec Struct, a "
                "pydantic model, a TypedDict or a dict, whose fields are the arguments"
            )
        return found

    @property
    def _item_name(self) -> str:
        return getattr(self._item, "__name__", repr(self._item))

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        shape = dict[str, Any] if self._item is dict else self._item
        try:
            return msgspec.json.Decoder(shape, dec_hook=codec.dec_hook)
        except TypeError as error:
            raise ConfigError(
                f"task {self._task}: {self._item_name} cannot be used for arguments: {error}"
            ) from error

    def _given(self, value: object) -> object:
        is_it = isinstance(value, dict if typing.is_typeddict(self._item) else self._item)
        if not is_it:
            raise InvalidPayload(f"{self._task} takes one {self._item_name}, got {value!r}")
        return value

    def _made(self, fields: Mapping[str, object]) -> object:
        known = _fields(self._item)
        if known is None:
            return dict(fields)
        for name in fields:
            if name not in known:
                raise InvalidPayload(
                    f"{self._task} has no argument {name!r}{did_you_mean(name, known)}; "
                    "options such as queue or delay go into using(…)"
                )
        try:
            return self._item(**fields)
        except (TypeError, ValueError) as error:  # a field is missing, or the type's own validation
            raise InvalidPayload(f"{self._task}: {error}") from error


def _bare(hint: Any) -> Any:
    return typing.get_origin(hint) or hint


def _fields(item: Any) -> Sequence[str] | None:
    """The names of a record type's fields; None for what is not one, and for a dict."""
    if item is dict:
        return None
    if dataclasses.is_dataclass(item):
        return [field.name for field in dataclasses.fields(item)]
    if isinstance(item, type) and issubclass(item, msgspec.Struct):
        return item.__struct_fields__
    if typing.is_typeddict(item):
        return list(item.__annotations__)
    model_fields = getattr(item, "model_fields", None)
    return list(model_fields) if isinstance(model_fields, Mapping) else None
