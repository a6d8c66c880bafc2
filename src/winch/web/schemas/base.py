"""The beginning of every body that is sent."""

from __future__ import annotations

from typing import Annotated

import msgspec

Limit = Annotated[int, msgspec.Meta(ge=1, le=200)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Uuid = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F-]{32,36}$")]
# As the server wrote it; a claim is given back as it came.
GivenUuid = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")]
Duration = Annotated[
    str, msgspec.Meta(max_length=40, description="Like 250ms, 30s, 5m, 2h, 1d.", examples=["30s"])
]


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request's body: unknown fields are refused, not ignored."""


class ProblemOut(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    request_id: str
