"""Webhook endpoints, their deliveries and replays. No answer holds a secret."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from winch.web.schemas.base import Body, Duration, Limit, Name

Secret = Annotated[
    str,
    msgspec.Meta(
        min_length=1, max_length=200, description="whsec_ and base64; no answer ever holds it."
    ),
]
WebhookUrl = Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]
Events = Annotated[list[Name], msgspec.Meta(min_length=1, max_length=100)]


class EndpointOut(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint. `url` is without what looks like a secret; `secrets` is how many sign now."""

    id: str
    url: str
    events: list[str]
    tenant: str | None
    created_at: datetime
    is_disabled: bool
    disabled_at: datetime | None
    disabled_by: str | None
    reason: str | None
    failures: int
    failing_since: datetime | None
    secrets: int
    rotated_at: datetime | None


class EndpointsOut(msgspec.Struct, frozen=True, kw_only=True):
    endpoints: list[EndpointOut]


class EndpointQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tenant: str | None = None


class NewEndpointBody(Body, frozen=True, kw_only=True):
    """An endpoint for these events of this tenant; without a tenant, of all."""

    url: WebhookUrl
    events: Events
    secret: Secret
    tenant: Name | None = None


class ChangedEndpointBody(Body, frozen=True, kw_only=True):
    """What is to be another."""

    url: WebhookUrl | None = None
    events: Events | None = None


class RotateBody(Body, frozen=True, kw_only=True):
    """The new secret. The old one signs as well until the overlap ends."""

    secret: Secret
    overlap: Duration = "24h"


class DeliveryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Limit = 50


class DeliveryOut(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt; `event` is the `webhook-id`, `delivery` the job."""

    delivery: str
    event: str
    type: str
    at: datetime
    attempt: int
    status: int | None
    error: str | None
    seconds: float


class DeliveriesOut(msgspec.Struct, frozen=True, kw_only=True):
    deliveries: list[DeliveryOut]


class WebhookReplayBody(Body, frozen=True, kw_only=True):
    """Events from `start` up to `end` (null: now), or those with these ids."""

    start: datetime | None = None
    end: datetime | None = None
    events: Annotated[list[Name], msgspec.Meta(max_length=1000)] | None = None
    dry_run: bool = False


class WebhookReplayOut(msgspec.Struct, frozen=True, kw_only=True):
    matched: int
    enqueued: int
    is_dry_run: bool
