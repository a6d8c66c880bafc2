"""Arguments are checked when a job is enqueued, with the error its caller sees."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from winch import App, Context, InvalidPayload, PayloadTooLarge


@dataclass
class Address:
    street: str
    number: int


def make(fn: Any) -> Any:
    return App("memory://").task(name="t")(fn)


def test_arguments_come_back_as_the_types_the_signature_names() -> None:
    def fn(
        when: datetime,
        who: uuid.UUID,
        price: Decimal,
        home: Address,
        tags: set[str],
        note: str | None = None,
    ) -> None: ...

    task = make(fn)
    given = (datetime(2026, 1, 2, tzinfo=UTC), uuid.uuid4(), Decimal("1.10"), Address("Main", 7), {"a"})
    args, kwargs = task.arguments.unpack(task.bind(*given).args)
    assert args == []
    assert kwargs == dict(zip(("when", "who", "price", "home", "tags"), given, strict=True))


def test_a_default_is_taken_when_the_job_runs_not_when_it_is_stored() -> None:
    def fn(a: int, b: int = 3) -> None: ...

    task = make(fn)
    assert task.bind(1).args == '{"a":1}'


def test_star_arguments_survive_the_store() -> None:
    def fn(a: int, *rest: int, **more: float) -> None: ...

    task = make(fn)
    assert task.arguments.unpack(task.bind(1, 2, 3, x=0.5).args) == ([1, 2, 3], {"x": 0.5})


def test_positional_only_arguments_are_passed_by_position() -> None:
    def fn(a: int, /, b: int) -> None: ...

    task = make(fn)
    assert task.arguments.unpack(task.bind(1, b=2).args) == ([1], {"b": 2})


def test_context_is_injected_and_is_no_argument() -> None:
    def fn(a: int, *, ctx: Context) -> None: ...

    task = make(fn)
    assert task.bind(1).args == '{"a":1}'
    with pytest.raises(InvalidPayload, match="has no argument 'ctx'"):
        task.bind(1, ctx=None)


@pytest.mark.parametrize(
    "args, kwargs, message",
    [
        (("x",), {}, "argument 'a': expected int, got str"),
        ((), {}, "needs the argument 'a'"),
        ((1, 2, 3), {}, "takes at most 2 positional arguments, got 3"),
        ((1,), {"bb": 1}, r"has no argument 'bb' \(did you mean 'b'\?\)"),
        ((1,), {"a": 2}, "two values for argument 'a'"),
        ((1,), {"queue": "mail"}, r"options such as queue or delay go into using"),
        ((1,), {"b": float("nan")}, "holds nan"),
        ((2**70,), {}, "past 64 bits"),
        ((1,), {"b": object()}, "cannot be stored as JSON"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_stored(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    def fn(a: int, b: Any = None) -> None: ...

    with pytest.raises(InvalidPayload, match=message):
        make(fn).bind(*args, **kwargs)


def test_oversized_arguments_are_refused_with_the_limit() -> None:
    def fn(a: str) -> None: ...

    task = make(fn)
    task.bind("x" * (256 * 1024 - 10))
    with pytest.raises(PayloadTooLarge, match="the limit is 262,144"):
        task.bind("x" * (256 * 1024))


def test_plain_arguments_are_kept_as_they_are_or_refused() -> None:
    def fn(number: int, text: str, flag: bool) -> None: ...

    task = make(fn)
    assert task.bind(-(2**63), 'é"\\u0000', True).args == (
        '{"number":-9223372036854775808,"text":"é\\"\\\\u0000","flag":true}'
    )
    assert task.bind(flag=False, number=2**63 - 1, text="").args == (
        '{"number":9223372036854775807,"text":"","flag":false}'
    )
    for wrong in [
        (2**63, "a", True),
        (1, "a\0b", True),
        (1, "\ud800", True),
        (True, "a", 1),
        (1.5, "a", True),
    ]:
        with pytest.raises(InvalidPayload):
            task.bind(*wrong)
