"""The headers of a job that comes over HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping

from winch.web.problems import Problem

OWN = "winch-"
_TRACEPARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def job_headers(request: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The headers that a producer gives a job, and the trace of its request.

    Refuses names of Winch's own: they make a job a member of a flow, even of another tenant's.
    """
    for name in given:
        if name.startswith(OWN):
            raise Problem("invalid", f"header {name!r}: names that begin with {OWN!r} are Winch's own")
    return _trace(request) | dict(given)


def _trace(request: Mapping[str, str]) -> dict[str, str]:
    """The trace that the request belongs to (W3C), for the job to carry on."""
    parent, state = request.get("traceparent", ""), request.get("tracestate", "")
    if not _TRACEPARENT.fullmatch(parent):
        return {}
    fits = state and len(state) <= 512 and state.isascii() and state.isprintable()
    return {"traceparent": parent} | ({"tracestate": state} if fits else {})
