"""Tasks for suite.py."""

from __future__ import annotations

import contextvars
import logging
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path

from winch import Limit, Retry, RetryAfter, Unique
from winch.integrations.django import schedule, task

seen: list[Any] = []


def on_log(record: logging.LogRecord) -> object:
    """What a test does with a record."""
    raise NotImplementedError


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


@schedule(every="1h", args=["tick"], kwargs={"number": 3})
@task()
def ticks(word: str, number: int = 0) -> None:
    seen.append((word, number))


def logged() -> None:
    record = logging.makeLogRecord({"msg": "here"})
    on_log(record)


@task()
def logs() -> None:
    logged()
    logs_too.enqueue()


@task()
async def logs_too() -> None:
    logged()
    contextvars.Context().run(logged)  # outside of every job


def enqueue(request: HttpRequest) -> HttpResponse:
    logs.enqueue()
    return HttpResponse("enqueued")


urlpatterns = [path("enqueue", enqueue)]


def keeps_nothing(order: int) -> None: ...
