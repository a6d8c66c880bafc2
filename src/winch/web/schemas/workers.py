"""Commands to workers over HTTP."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from winch.web.schemas.base import Body, Duration

Concurrency = Annotated[int, msgspec.Meta(ge=1, le=1024)]


class CommandBody(Body, frozen=True, kw_only=True):
    """`wait`: how long the request waits for the answer, up to 60 s."""

    wait: Duration = "0s"


class StopBody(CommandBody, frozen=True, kw_only=True):
    """`grace` replaces the grace period of the worker."""

    grace: Duration | None = None


class ConfigureBody(CommandBody, frozen=True, kw_only=True):
    """`queues` as of `winch worker -Q`. `queue_limits` and `queue_rates` replace those of all queues."""

    concurrency: Concurrency | None = None
    queues: Annotated[str, msgspec.Meta(max_length=20_000)] | None = None
    queue_limits: Annotated[dict[str, int], msgspec.Meta(max_length=256)] | None = None
    queue_rates: Annotated[dict[str, str], msgspec.Meta(max_length=256)] | None = None


class CommandOut(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command by now."""

    id: str
    session: str
    state: Literal["done", "failed", "pending", "ended"]
    text: str
