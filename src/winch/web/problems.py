"""Errors as RFC 9457 problems: what happened and what to do, never how the server is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from winch.core.errors import (
    ConfigError,
    DuplicateJob,
    EndpointNotFound,
    EnqueueUncertain,
    FlowNotFound,
    InvalidPayload,
    InvalidTransition,
    JobNotFound,
    LostClaim,
    PayloadTooLarge,
    QueueFull,
    ScheduleNotFound,
    SchemaMismatch,
    StorageError,
    StorageFull,
    StorageUnavailable,
    UnknownTask,
    WinchError,
)
from winch.core.values.redact import mask_text

# code -> (status, title). The type of a problem is `urn:winch:problem:<code>`.
PROBLEMS: dict[str, tuple[int, str]] = {
    "bad-request": (400, "The request cannot be read"),
    "unauthenticated": (401, "Authentication is needed"),
    "forbidden": (403, "This is not allowed"),
    "read-only": (403, "The server is read-only"),
    "cross-site": (403, "The request comes from another site"),
    "not-found": (404, "There is no such thing"),
    "method-not-allowed": (405, "The method is not allowed here"),
    "timeout": (408, "The request took too long"),
    "lost-claim": (409, "The claim has ended"),
    "session-ended": (404, "The session has ended"),
    "not-in-this-state": (409, "The job's state does not allow it"),
    "duplicate": (409, "Another job holds the unique key"),
    "too-large": (413, "It is too large"),
    "too-long": (414, "The address is too long"),
    "not-json": (415, "The body must be application/json"),
    "wrong-host": (421, "The request is for another host"),
    "invalid": (422, "A value is not valid"),
    "unknown-task": (422, "No such task is known"),
    "key-reused": (422, "The Idempotency-Key was used for another request"),
    "queue-full": (429, "The queue is full"),
    "too-many": (429, "Too many requests"),
    "server-error": (500, "The server failed"),
    "not-available": (501, "The store does not do this"),
    "busy": (503, "The server is busy"),
    "store-unavailable": (503, "The store is out of reach"),
}


class Problem(Exception):
    """An answer that is an error; raised anywhere in a handler."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.status: int
        self.title: str
        self.status, self.title = PROBLEMS[code]
        self.detail = detail
        self.headers: dict[str, str] = dict(headers or {})
        self.more = more

    def body(self, instance: str, request_id: str) -> dict[str, Any]:
        return {
            "type": f"urn:winch:problem:{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
            "code": self.code,
            "request_id": request_id,
            **self.more,
        }

    def response(self, instance: str, request_id: str) -> Response:
        return Response(
            msgspec.json.encode(self.body(instance, request_id)),
            self.status,
            {"content-type": "application/problem+json", **self.headers},
        )


_CODES: tuple[tuple[type[WinchError], str], ...] = (
    (JobNotFound, "not-found"),
    (EndpointNotFound, "not-found"),
    (ScheduleNotFound, "not-found"),
    (FlowNotFound, "not-found"),
    (LostClaim, "lost-claim"),
    (InvalidTransition, "not-in-this-state"),
    (DuplicateJob, "duplicate"),
    (PayloadTooLarge, "too-large"),
    (InvalidPayload, "invalid"),
    (UnknownTask, "unknown-task"),
    (ConfigError, "invalid"),
)


def problem_of(error: WinchError) -> Problem:
    """The problem that one of our own errors is."""
    if isinstance(error, QueueFull):
        seconds = max(1, round(error.retry_after.total_seconds()))
        return Problem("queue-full", str(error), headers={"retry-after": str(seconds)})
    if isinstance(error, EnqueueUncertain):
        return Problem(
            "store-unavailable", str(error), headers={"retry-after": "1"}, ids=list(error.ids)
        )
    if isinstance(error, StorageUnavailable | SchemaMismatch | StorageFull):
        # The message of the store may hold addresses and names; the log has it.
        word = "is full" if isinstance(error, StorageFull) else "cannot be used now"
        return Problem("store-unavailable", f"the store {word}", headers={"retry-after": "1"})
    if isinstance(error, StorageError):
        return Problem("server-error", "the store refused the request; see the server's log")
    for kind, code in _CODES:
        if isinstance(error, kind):
            problem = Problem(code, mask_text(str(error)))
            if isinstance(error, DuplicateJob):
                problem.more["existing"] = error.existing
            return problem
    return Problem("invalid", mask_text(str(error)))
