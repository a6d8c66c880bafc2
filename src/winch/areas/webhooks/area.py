"""`app.webhooks`: endpoints of your customers as data, and events that workers deliver to them.

app.webhooks.setup(source="/shop")
made = app.webhooks.subscribe("https://example.com/hooks", ["invoice.*"], tenant="acme")
app.webhooks.publish("invoice.paid", {"total": 990}, tenant="acme", key="42", conn=session)
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from winch.areas.outbox import DEFAULT_RETRY
from winch.areas.webhooks import delivery_log, endpoints
from winch.areas.webhooks.delivery import (
    DELIVERIES_TOPIC,
    EVENTS_TOPIC,
    DeliverySink,
    EventSink,
    WebhookRules,
    event_payload,
)
from winch.areas.webhooks.delivery_log import DeliveryAttempt
from winch.areas.webhooks.endpoints import (
    MOST_ENDPOINTS,
    MOST_SECRETS,
    OWN_PREFIX,
    Endpoint,
    StoredEndpoint,
    check_event,
    check_patterns,
    shown,
)
from winch.areas.webhooks.redelivery import Redelivered, redeliver
from winch.core.errors import ConfigError
from winch.core.policy.retention import Retention
from winch.core.values.duration import Duration, parse_duration
from winch.core.values.redact import mask_text
from winch.engine.base.http_post import target
from winch.engine.base.operation import Operation
from winch.engine.client.audit import noted
from winch.engine.client.twins import blocking, twin
from winch.engine.tasks.options import _tenant

if TYPE_CHECKING:
    import uuid

    from winch.areas.outbox import Outbox
    from winch.core.policy.retry import Retry
    from winch.engine.client.client import Client
    from winch.engine.client.job import Job
    from winch.engine.tasks.runtime import Runtime

LONGEST_OVERLAP = timedelta(days=30)


class Subscribed(msgspec.Struct, frozen=True, kw_only=True):
    """A new endpoint and its secret, for the receiver. Winch does not show the secret again."""

    endpoint: Endpoint
    secret: str

    def __repr__(self) -> str:
        return f"Subscribed(endpoint={self.endpoint!r}, secret='…')"


class Webhooks:
    """`app.webhooks`: endpoints, the events they get, and what became of the deliveries."""

    def __init__(self, client: Client, runtime: Runtime, outbox: Outbox) -> None:
        self._client = client
        self._runtime = runtime
        self._outbox = outbox
        self._rules: WebhookRules | None = None

    def setup(
        self,
        *,
        queue: str = "default",
        retry: Retry = DEFAULT_RETRY,
        timeout: Duration = "10s",
        source: str = "winch",
        retention: Duration = "7d",
        disable_after: Duration = "1d",
        failures: int = 20,
        allow_private: bool = False,
        ca_file: str | None = None,
    ) -> None:
        """Let workers of this app deliver webhooks. Call it once, in the code of the app.

        An endpoint is disabled when at least `failures` attempts in a row have failed, for
        `disable_after` or longer. Events can be replayed for `retention`. `allow_private` is for
        endpoints of your own: it lets every endpoint be plain HTTP at any address.
        """
        if self._rules is not None:
            raise ConfigError("app.webhooks.setup was called before")
        seconds = parse_duration(timeout, "timeout").total_seconds()
        if not 0 < seconds <= 600:
            raise ConfigError(f"the timeout of webhooks must be up to 10 minutes, got {timeout!r}")
        if not isinstance(failures, int) or isinstance(failures, bool) or failures < 1:
            raise ConfigError(f"failures must be a whole number of at least 1, got {failures!r}")
        kept = parse_duration(retention, "retention")
        self._rules = rules = WebhookRules(
            timeout=seconds,
            source=source,
            retention=kept,
            disable_after=parse_duration(disable_after, "disable_after"),
            failures=failures,
            allow_private=allow_private,
            ca_file=ca_file,
        )
        fan_out = EventSink(self._client, self._outbox, rules)
        sending = DeliverySink(self._client, self._runtime, rules, self._apublish_own)
        keep = Retention(kept)
        self._outbox._serve(EVENTS_TOPIC, fan_out, queue, retry, "block", keep)
        # A delivery that is given up lets the next ones pass; a replay sends it again.
        self._outbox._serve(DELIVERIES_TOPIC, sending, queue, retry, "skip", keep)

    # -- events ----------------------------------------------------------------------------------------

    def publish(
        self,
        event: str,
        payload: Any,
        *,
        tenant: str | None = None,
        key: str | None = None,
        conn: object = None,
        id: str | uuid.UUID | None = None,
    ) -> Job[None]:
        """Store an event for the endpoints of a tenant, inside the caller's transaction with `conn`.

        Each endpoint gets the events of one `key` in their order. An endpoint without a tenant gets
        the events of all.
        """
        return self._outbox.add(
            EVENTS_TOPIC, **self._event(event, payload, tenant, key), conn=conn, id=id
        )

    async def apublish(
        self,
        event: str,
        payload: Any,
        *,
        tenant: str | None = None,
        key: str | None = None,
        conn: object = None,
        id: str | uuid.UUID | None = None,
    ) -> Job[None]:
        """`publish` without blocking the event loop."""
        given = self._event(event, payload, tenant, key)
        return await self._outbox.aadd(EVENTS_TOPIC, **given, conn=conn, id=id)

    def _event(self, event: str, data: Any, tenant: str | None, key: str | None) -> dict[str, Any]:
        self._set_up()
        if check_event(event).startswith(OWN_PREFIX):
            raise ConfigError(f"names of events that begin with {OWN_PREFIX!r} are for Winch itself")
        if tenant is not None:
            _tenant(tenant)
        # A key belongs to its tenant: customers do not wait for each other.
        full = None if key is None else f"{endpoints.hash_of(tenant)}:{key}"
        return {"payload": event_payload(event, tenant, key, data), "key": full}

    async def _apublish_own(self, event: str, data: Any, tenant: str | None, event_id: str) -> None:
        payload = event_payload(event, tenant, None, data)
        await self._outbox.aadd(EVENTS_TOPIC, payload=payload, id=event_id)

    def _set_up(self) -> WebhookRules:
        if self._rules is None:
            raise ConfigError("call app.webhooks.setup() in the code of the app first")
        return self._rules

    # -- endpoints -------------------------------------------------------------------------------------

    @blocking
    def subscribe(
        self,
        url: str,
        events: Iterable[str],
        *,
        tenant: str | None = None,
        secret: str | bytes | None = None,
    ) -> Operation[Subscribed]:
        """Add an endpoint for events such as "invoice.paid", "invoice.*" or "*".

        Without `secret`, "whsec_" and base64, Winch makes one. Give it to the receiver: it is not
        shown again.
        """
        self._check_url(url)
        if tenant is not None:
            _tenant(tenant)
        patterns, text = check_patterns(events), endpoints.secret_text(secret)
        driver = self._client.driver()
        there = yield from endpoints.read_all(driver, tenant=tenant)
        if len(there) >= MOST_ENDPOINTS:
            raise ConfigError(f"{MOST_ENDPOINTS:,} endpoints of one tenant is the most")
        endpoint_id = endpoints.new_id(tenant)
        stored = StoredEndpoint(
            v=endpoints.new_version(),
            url=url,
            events=patterns,
            tenant=tenant,
            created_at=self._now(),
            secrets=(endpoints.sealed(self._runtime.keys(), endpoint_id, text),),
        )
        yield from endpoints.add(driver, endpoint_id, stored)
        yield from self._noted("subscribe webhook", endpoint_id, stored, url=mask_text(url),
                               events=list(patterns))  # fmt: skip
        return Subscribed(endpoint=shown(endpoint_id, stored, self._now()), secret=text)

    @twin(subscribe)
    def asubscribe(self) -> None:
        """`subscribe` without blocking the event loop."""

    @blocking
    def get(self, endpoint_id: str) -> Operation[Endpoint]:
        """The endpoint with this id. Raises EndpointNotFound."""
        stored = yield from endpoints.read(self._client.driver(), endpoint_id)
        return shown(endpoint_id, stored, self._now())

    @twin(get)
    def aget(self) -> None:
        """`get` without blocking the event loop."""

    @blocking
    def list(self, *, tenant: str | None = None) -> Operation[builtins.list[Endpoint]]:
        """The endpoints of a tenant, or all, oldest first."""
        driver = self._client.driver()
        found = yield from endpoints.read_all(driver, tenant=tenant, is_any=tenant is None)
        made = [shown(endpoint_id, stored, self._now()) for endpoint_id, stored in found]
        return sorted(made, key=lambda one: (one.created_at, one.id))

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

    @blocking
    def edit(
        self, endpoint_id: str, *, url: str | None = None, events: Iterable[str] | None = None
    ) -> Operation[Endpoint]:
        """Change the URL or the events of an endpoint. Deliveries that wait go to the new URL."""
        if url is not None:
            self._check_url(url)
        patterns = None if events is None else check_patterns(events)
        if url is None and patterns is None:
            raise ConfigError("give a url or events to change")

        def changed(before: StoredEndpoint) -> StoredEndpoint:
            return msgspec.structs.replace(
                before, url=url or before.url, events=patterns or before.events
            )

        return (
            yield from self._changed(
                "edit webhook",
                endpoint_id,
                changed,
                url=None if url is None else mask_text(url),
                events=None if patterns is None else [*patterns],
            )
        )

    @twin(edit)
    def aedit(self) -> None:
        """`edit` without blocking the event loop."""

    @blocking
    def disable(self, endpoint_id: str, *, reason: str | None = None) -> Operation[Endpoint]:
        """Send nothing to this endpoint until `enable`. Deliveries that wait for it become dead."""
        masked = None if reason is None else mask_text(reason)

        def changed(before: StoredEndpoint) -> StoredEndpoint:
            return msgspec.structs.replace(
                before,
                disabled_at=before.disabled_at or self._now(),
                disabled_by="operator",
                reason=masked,
                is_unannounced=False,
            )

        return (yield from self._changed("disable webhook", endpoint_id, changed, reason=masked))

    @twin(disable)
    def adisable(self) -> None:
        """`disable` without blocking the event loop."""

    @blocking
    def enable(self, endpoint_id: str) -> Operation[Endpoint]:
        """Send to this endpoint again, from now on. `replay` sends what it has missed."""

        def changed(before: StoredEndpoint) -> StoredEndpoint:
            return msgspec.structs.replace(
                before,
                disabled_at=None,
                disabled_by=None,
                reason=None,
                failures=0,
                failing_since=None,
                is_unannounced=False,
            )

        return (yield from self._changed("enable webhook", endpoint_id, changed))

    @twin(enable)
    def aenable(self) -> None:
        """`enable` without blocking the event loop."""

    @blocking
    def rotate(
        self, endpoint_id: str, *, secret: str | bytes | None = None, overlap: Duration = "24h"
    ) -> Operation[str]:
        """Give the endpoint a new secret and return it. The old one signs as well for `overlap`.

        A delivery has one signature for each, so a receiver accepts it by the old secret or the new.
        """
        text = endpoints.secret_text(secret)
        lasts = parse_duration(overlap, "overlap")
        if not timedelta(0) <= lasts <= LONGEST_OVERLAP:
            raise ConfigError(f"overlap must be up to {LONGEST_OVERLAP.days}d, got {overlap!r}")
        made = endpoints.sealed(self._runtime.keys(), endpoint_id, text)
        now = self._now()

        def changed(before: StoredEndpoint) -> StoredEndpoint:
            until = now + lasts
            kept = [one for one in before.secrets if one.until is None or one.until > now]
            old = [msgspec.structs.replace(one, until=min(one.until or until, until)) for one in kept]
            if len(old) >= MOST_SECRETS:
                raise ConfigError(
                    f"{MOST_SECRETS} secrets sign for {endpoint_id} already; wait until the overlap of "
                    "one has ended, or rotate with overlap='0s'"
                )
            return msgspec.structs.replace(
                before, secrets=(made, *(old if lasts else ())), rotated_at=now
            )

        yield from self._changed("rotate webhook secret", endpoint_id, changed, overlap=str(lasts))
        return text

    @twin(rotate)
    def arotate(self) -> None:
        """`rotate` without blocking the event loop."""

    @blocking
    def remove(self, endpoint_id: str) -> Operation[None]:
        """Remove the endpoint, its secrets and its log. Deliveries that wait for it become dead."""

        def changed(before: StoredEndpoint) -> StoredEndpoint:
            return msgspec.structs.replace(before, is_removed=True, secrets=())

        yield from self._changed("remove webhook", endpoint_id, changed)
        yield from delivery_log.forget(self._client.driver(), endpoint_id)

    @twin(remove)
    def aremove(self) -> None:
        """`remove` without blocking the event loop."""

    # -- deliveries ------------------------------------------------------------------------------------

    @blocking
    def deliveries(
        self, endpoint_id: str, *, limit: int = 50
    ) -> Operation[builtins.list[DeliveryAttempt]]:
        """The newest attempts to deliver to this endpoint, newest first, 200 at most."""
        driver = self._client.driver()
        yield from endpoints.read(driver, endpoint_id)
        return (yield from delivery_log.read(driver, endpoint_id, limit))

    @twin(deliveries)
    def adeliveries(self) -> None:
        """`deliveries` without blocking the event loop."""

    @blocking
    def replay(
        self,
        endpoint_id: str,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        events: Sequence[str] | None = None,
        dry_run: bool = False,
    ) -> Operation[Redelivered]:
        """Send events to an endpoint again: those from `start` up to `end`, or those with these ids.

        Each key keeps its order. The receiver gets the same `webhook-id` as before.
        """
        self._set_up()
        driver = self._client.driver()
        stored = yield from endpoints.read(driver, endpoint_id)
        if stored.disabled_at is not None and not dry_run:
            raise ConfigError(f"endpoint {endpoint_id} is disabled; enable it before a replay")
        done = yield from redeliver(
            self._client, self._runtime, self._outbox, endpoint_id, stored,
            start=start, end=end, events=events, dry_run=dry_run,
        )  # fmt: skip
        if not dry_run:
            yield from self._noted(
                "replay webhooks",
                endpoint_id,
                stored,
                start=None if start is None else start.isoformat(),
                end=None if end is None else end.isoformat(),
                events=None if events is None else len(events),
                enqueued=done.enqueued,
            )
        return done

    @twin(replay)
    def areplay(self) -> None:
        """`replay` without blocking the event loop."""

    # -- what they share -------------------------------------------------------------------------------

    def _now(self) -> datetime:
        return self._client.surroundings.clock.now()

    def _check_url(self, url: str) -> None:
        target(url, allow_private=self._rules is not None and self._rules.allow_private)

    def _changed(
        self, action: str, endpoint_id: str, changed: endpoints.Change, **detail: Any
    ) -> Operation[Endpoint]:
        stored = yield from endpoints.change(self._client.driver(), endpoint_id, changed)
        yield from self._noted(action, endpoint_id, stored, **detail)
        return shown(endpoint_id, stored, self._now())

    def _noted(
        self, action: str, endpoint_id: str, stored: StoredEndpoint, **detail: Any
    ) -> Operation[None]:
        driver = self._client.driver()
        yield from noted(driver, action, endpoint_id, tenant=stored.tenant, **detail)
