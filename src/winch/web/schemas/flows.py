"""Flows and signals."""

from __future__ import annotations

from typing import Any

import msgspec

from winch.core.lifecycle import JobState
from winch.web.schemas.base import Body, Limit, Name


class FlowQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cursor: str | None = None
    limit: Limit = 50


class FlowOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    kind: str
    members: int
    tasks: list[str]


class FlowsOut(msgspec.Struct, frozen=True, kw_only=True):
    flows: list[FlowOut]
    next: str | None


class FlowNodeOut(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    task: str
    count: int
    after: list[str]


class FlowMemberOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    task: str
    state: JobState


class FlowDetail(msgspec.Struct, frozen=True, kw_only=True):
    flow: FlowOut
    state: str
    counts: dict[JobState, int]
    nodes: list[FlowNodeOut]
    members: list[FlowMemberOut]
    is_partial: bool


class CountOut(msgspec.Struct, frozen=True, kw_only=True):
    jobs: int


class SignalBody(Body, frozen=True, kw_only=True):
    payload: Any = None
    id: Name | None = None


class SignalOut(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    is_new: bool
