"""The two sinks of webhooks: an event becomes a delivery for each endpoint, and a delivery is posted.

Both are topics of the outbox. An event goes out with the caller's transaction; its deliveries have ids
made of the event and the endpoint, so that an event that is dealt with twice makes them once. The FIFO
key of a delivery is the endpoint and the key of the event: order holds for each endpoint alone, and one
that fails keeps no other back.
"""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from winch.areas.sinks import MAX_RETRY_AFTER, Message, cloud_event
from winch.areas.webhooks import delivery_log, endpoints
from winch.areas.webhooks.endpoints import DISABLED_EVENT, StoredEndpoint
from winch.core.errors import ConfigError, DeliveryRefused, EndpointNotFound, StorageError
from winch.core.job import to_micros
from winch.core.outcome import Discard, RetryAfter
from winch.core.values.ids import job_id
from winch.core.values.redact import mask_text
from winch.engine.base.http_post import Reply, post, signed, target
from winch.engine.base.log import log
from winch.engine.client.audit import acting, noted
from winch.storage.kv_records import KvRecord

if TYPE_CHECKING:
    from winch.areas.outbox import Outbox
    from winch.engine.client.client import Client
    from winch.engine.tasks.runtime import Runtime

EVENTS_TOPIC = "webhooks"
DELIVERIES_TOPIC = "webhook-deliveries"
# Which events there were, by tenant and time: what a replay of a range goes by.
EVENTS_BOOK = "webhook-event"
ALL_TENANTS = "a" * 12
COUNT_TRIES = 10


class WebhookRules(msgspec.Struct, frozen=True, kw_only=True):
    """What `app.webhooks.setup` was given."""

    timeout: float
    source: str
    retention: timedelta
    disable_after: timedelta
    failures: int
    allow_private: bool
    ca_file: str | None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of one delivery: the event, and the endpoint that gets it."""

    endpoint: str
    id: str
    event: str
    at: datetime
    key: str | None
    data: Any
    trace: str | None = None


def event_payload(event: str, tenant: str | None, key: str | None, data: Any) -> dict[str, Any]:
    """The payload of an event on the outbox."""
    return {"event": event, "tenant": tenant, "key": key, "data": data}


def delivery_of(endpoint_id: str, message: Message) -> Delivery:
    """The delivery of an event to an endpoint."""
    given = message.payload
    return Delivery(
        endpoint=endpoint_id,
        id=message.id,
        event=given["event"],
        at=message.created_at,
        key=given["key"],
        data=given["data"],
        trace=message.headers.get("traceparent"),
    )


def bound(outbox: Outbox, delivery: Delivery, replay: str = "") -> Any:
    """The delivery as a message of the outbox. `replay` tells repeats apart that a person wants."""
    text = f"{delivery.id} {delivery.endpoint} {replay}"
    digest = hashlib.sha256(text.encode()).digest()
    delivery_id = job_id(to_micros(delivery.at) * 4096 // 1000, digest[:8])
    key = None if delivery.key is None else f"{delivery.endpoint}:{delivery.key}"
    payload = msgspec.to_builtins(delivery, builtin_types=(datetime,))
    payload["at"] = delivery.at.isoformat()
    return outbox._bound(DELIVERIES_TOPIC, payload, key, None, delivery_id, None)


def event_keys(tenant: str | None, at: datetime, event_id: str) -> list[str]:
    """Where an event is written down: under its tenant, and under all."""
    prefixes = dict.fromkeys((endpoints.hash_of(tenant), ALL_TENANTS))
    return [f"{prefix}-{to_micros(at):020}-{event_id}" for prefix in prefixes]


class EventSink:
    """The sink of events."""

    def __init__(self, client: Client, outbox: Outbox, rules: WebhookRules) -> None:
        self._client, self._outbox, self._rules = client, outbox, rules

    async def deliver(self, message: Message) -> None:
        """Store a delivery for each endpoint that gets this event."""
        event, tenant = message.payload["event"], message.payload["tenant"]
        driver = self._client.driver()
        found = await self._client.arun(endpoints.read_all(driver))
        if tenant is not None:
            found += await self._client.arun(endpoints.read_all(driver, tenant=tenant))
        # Written first: an event that an endpoint has got can be replayed.
        keep = self._rules.retention
        keys = event_keys(tenant, message.created_at, message.id)
        lines = [KvRecord(book=EVENTS_BOOK, key=key, body=f'"{event}"', keep=keep) for key in keys]
        await driver.arun(driver.kv_put(lines))
        calls = [
            bound(self._outbox, delivery_of(endpoint_id, message))
            for endpoint_id, stored in found
            if stored.disabled_at is None and stored.matches(event, tenant)
        ]
        if calls:
            await self._client.aenqueue_many(calls)


class DeliverySink:
    """The sink of deliveries: one signed POST, its line in the log, and what follows from the answer."""

    def __init__(
        self,
        client: Client,
        runtime: Runtime,
        rules: WebhookRules,
        publish: Callable[[str, Any, str | None, str], Any],
    ) -> None:
        self._client, self._runtime, self._rules = client, runtime, rules
        self._publish = publish
        self._context: ssl.SSLContext | None = None

    def _now(self) -> datetime:
        return self._client.surroundings.clock.now()

    async def deliver(self, message: Message) -> None:
        """Post one delivery; raises Discard, RetryAfter or ConnectionError when it is not accepted."""
        delivery = msgspec.convert(message.payload, Delivery)
        driver = self._client.driver()
        try:
            stored = await self._client.arun(endpoints.read(driver, delivery.endpoint))
        except EndpointNotFound:
            raise Discard(f"the endpoint {delivery.endpoint} is removed") from None
        if stored.disabled_at is not None:
            await self._announce(delivery.endpoint, stored)
            raise Discard(f"the endpoint {delivery.endpoint} is disabled: {stored.reason}")
        secrets = stored.signing(delivery.endpoint, self._runtime.keys(), self._now())
        began = time.perf_counter()
        reply, error = None, None
        try:
            reply = await self._post(delivery, stored, secrets)
            if not 200 <= reply.status < 300:
                error = f"{target_host(stored.url)} answered {reply.status}"
        except (OSError, ValueError, DeliveryRefused, ConfigError) as failure:
            error = mask_text(str(failure)) or type(failure).__name__
        line = delivery_log.DeliveryAttempt(
            delivery=message.id,
            event=delivery.id,
            type=delivery.event,
            at=self._now(),
            attempt=message.attempt,
            status=None if reply is None else reply.status,
            error=error,
            seconds=round(time.perf_counter() - began, 3),
        )
        after = await self._recorded(delivery.endpoint, stored, line)
        if error is None:
            return
        if after.disabled_at is not None:
            await self._announce(delivery.endpoint, after)
            raise Discard(f"{error}; the endpoint is disabled: {after.reason}")
        if reply is not None and reply.retry_after is not None:
            raise RetryAfter(f"{min(reply.retry_after, MAX_RETRY_AFTER)}s", error)
        raise ConnectionError(error)

    async def _post(self, delivery: Delivery, stored: StoredEndpoint, secrets: list[bytes]) -> Reply:
        where = target(stored.url, allow_private=self._rules.allow_private)
        event = Message(
            id=delivery.id,
            topic=delivery.event,
            key=delivery.key,
            payload=delivery.data,
            created_at=delivery.at,
            attempt=1,
            headers={} if delivery.trace is None else {"traceparent": delivery.trace},
        )
        body = cloud_event(event, source=self._rules.source, type=delivery.event)
        headers = {
            "Content-Type": "application/cloudevents+json; charset=utf-8",
            "User-Agent": "winch",
            **signed(body, delivery.id, *secrets),
        }
        if self._context is None and where.is_encrypted:
            self._context = ssl.create_default_context(cafile=self._rules.ca_file)
        return await post(where, body, headers, timeout=self._rules.timeout, context=self._context)

    async def _recorded(
        self, endpoint_id: str, stored: StoredEndpoint, line: delivery_log.DeliveryAttempt
    ) -> StoredEndpoint:
        """Write the line, and count. A store that is out of reach now does not undo a delivery."""
        driver = self._client.driver()
        try:
            await self._client.arun(delivery_log.write(driver, endpoint_id, line))
            if line.error is None and not stored.failures:
                return stored
            changed = self._healthy if line.error is None else self._failing(line)
            swap = endpoints.change(driver, endpoint_id, changed, tries=COUNT_TRIES)
            return await self._client.arun(swap)
        except (StorageError, EndpointNotFound) as error:
            log.warning("webhook endpoint %s: an attempt is not counted: %s", endpoint_id, error)
            return stored

    def _healthy(self, before: StoredEndpoint) -> StoredEndpoint | None:
        if not before.failures:
            return None
        return msgspec.structs.replace(before, failures=0, failing_since=None)

    def _failing(self, line: delivery_log.DeliveryAttempt) -> endpoints.Change:
        def changed(before: StoredEndpoint) -> StoredEndpoint | None:
            if before.disabled_at is not None:
                return None
            since = before.failing_since or line.at
            count = before.failures + 1
            after = msgspec.structs.replace(before, failures=count, failing_since=since)
            is_gone = line.status == 410
            is_over = count >= self._rules.failures and line.at - since >= self._rules.disable_after
            if not (is_gone or is_over):
                return after
            why = (
                f"{target_host(before.url)} answered 410 (gone)"
                if is_gone
                else f"{count:,} attempts in a row failed since {since:%Y-%m-%d %H:%M} UTC, "
                f"the last one: {line.error}"
            )
            return msgspec.structs.replace(
                after,
                disabled_at=line.at,
                disabled_by="gone" if is_gone else "failures",
                reason=why,
                is_unannounced=True,
            )

        return changed

    async def _announce(self, endpoint_id: str, stored: StoredEndpoint) -> None:
        """An event, the log and the audit about an endpoint that Winch has disabled. The next delivery
        does it again if this process dies before the event is stored; the event has one id."""
        if not stored.is_unannounced:
            return
        driver = self._client.driver()
        data = {"endpoint": endpoint_id, "tenant": stored.tenant, "reason": stored.reason}
        digest = hashlib.sha256(f"{endpoint_id} {stored.disabled_at}".encode()).digest()
        event_id = job_id(to_micros(stored.disabled_at or self._now()) * 4096 // 1000, digest[:8])
        await self._publish(DISABLED_EVENT, data, stored.tenant, event_id)
        is_mine = False

        def announced(before: StoredEndpoint) -> StoredEndpoint | None:
            nonlocal is_mine
            is_mine = before.is_unannounced
            return msgspec.structs.replace(before, is_unannounced=False) if is_mine else None

        await self._client.arun(endpoints.change(driver, endpoint_id, announced))
        if not is_mine:
            return
        log.warning("webhook endpoint %s is disabled: %s", endpoint_id, stored.reason)
        with acting("winch", via="worker"):
            audit = noted(
                driver,
                "disable webhook",
                endpoint_id,
                tenant=stored.tenant,
                by=stored.disabled_by,
                reason=stored.reason,
            )
            await self._client.arun(audit)


def target_host(url: str) -> str:
    """The host of a URL that was checked before: the rest may be secret."""
    return url.partition("://")[2].partition("/")[0].partition("?")[0]
