"""Claiming plain jobs, for the verb and for queues in which some jobs have gates."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from winch.core.job import Claim
from winch.drivers.sqlite.records import read_found, to_json
from winch.drivers.sqlite.statements import Step
from winch.storage.params import ClaimParams


def claim_plain(
    params: ClaimParams, queue: str, limit: int, at: int
) -> Generator[Any, Any, list[Claim]]:
    """Take up to `limit` plain jobs of one queue, in its order."""
    return (yield from _claim(params, queue, limit, at, unless_gated=False)) or []


def claim_unless_gated(
    params: ClaimParams, queue: str, limit: int, at: int
) -> Generator[Any, Any, list[Claim] | None]:
    """The same; None, and nothing is taken, where a ready job of the queue has gates."""
    return (yield from _claim(params, queue, limit, at, unless_gated=True))


def _claim(
    params: ClaimParams, queue: str, limit: int, at: int, *, unless_gated: bool
) -> Generator[Any, Any, list[Claim] | None]:
    found = {
        "session": params.session,
        "queue": queue,
        "tasks": None if params.tasks is None else to_json(params.tasks),
        "limit": limit,
        "unless_gated": unless_gated,
    }
    [(text,)] = yield Step("claim", found)
    if text is None:
        return None
    if text == "[]":
        return []
    claims = read_found(text, params.token, queue, at)
    taken = {
        "now": at,
        "token": params.token,
        "session": params.session,
        "ids": to_json([claim.id for claim in claims]),
    }
    yield Step("claim.take", taken)
    return claims
