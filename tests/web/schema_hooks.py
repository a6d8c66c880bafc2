"""What Schemathesis takes from us in `test_schema.py`: shorter waits, and one more check."""

from __future__ import annotations

from typing import Any

import schemathesis

WAITS = "0s"
# How the server refuses requests that its description allows.
SHAPE = ("the body is not as it should be", "the query is not as it should be")
# Described, but Schemathesis sends an empty text as a date-time and 350.0 as a whole number.
DESCRIBED = ("Invalid RFC3339 encoded datetime", "got `float`")


@schemathesis.hook  # type: ignore[untyped-decorator]
def before_call(context: Any, case: schemathesis.Case, kwargs: Any) -> None:
    """A wait for a job or a worker would take up to a minute."""
    if isinstance(case.body, dict) and isinstance(case.body.get("wait"), str):
        case.body["wait"] = WAITS if case.body["wait"] else ""
    if isinstance(case.body, dict) and isinstance(case.body.get("claim"), dict):
        case.body["claim"].pop("wait", None)
    if str((case.headers or {}).get("Prefer", "")).startswith("wait="):
        case.headers["Prefer"] = "wait=0"


@schemathesis.check  # type: ignore[untyped-decorator]
def shape_is_as_described(ctx: Any, response: Any, case: schemathesis.Case) -> None:
    """A request of the described shape is refused by a rule, if at all, never for its shape."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if response.status_code in (400, 422):
        detail = response.json()["detail"]
        is_described = any(reason in detail for reason in DESCRIBED)
        assert is_described or not detail.startswith(SHAPE), (
            f"the description allows what the server refuses: {detail}"
        )
