"""Tasks for suite.py."""

from __future__ import annotations

from typing import Any

from winch import Limit, Retry, RetryAfter, Unique
from winch.integrations.django import task

seen: list[Any] = []


@task(retry=Retry.fixed("1s", attempts=3))
def fails(word: str) -> None:
    raise ValueError(word)


@task()
def fails_once() -> None:
    raise ValueError("once")


@task(takes_context=True)
def asks(context: Any) -> int:
    if context.attempt == 1:
        raise RetryAfter("5s")
    return int(context.attempt)


@task(unique=Unique("order"), limit=Limit(2, key="merchant"))
def charge(order: int, merchant: str = "m") -> str:
    seen.append((order, merchant))
    return f"{order} {merchant}"


@task()
async def doubled(number: int) -> int:
    return 2 * number


@task()
def keeps(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


def keeps_nothing(order: int) -> None: ...
