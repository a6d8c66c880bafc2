"""Where messages of the outbox go: HTTP, Redis streams, or anything with a method `deliver`."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
from collections.abc import Awaitable, Mapping
from datetime import datetime
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import msgspec

from winch.core.errors import ConfigError
from winch.core.outcome import Discard, RetryAfter
from winch.core.values.duration import Duration, parse_duration
from winch.engine.base.http_post import post, signed, target

MAX_RETRY_AFTER = 24 * 3600


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the outbox. `id` is the same in every attempt, so receivers can recognise a
    repeat.
    """

    id: str
    topic: str
    key: str | None
    payload: Any
    created_at: datetime
    attempt: int
    headers: Mapping[str, str]


class Sink(Protocol):
    """A destination for the messages of a topic: any object with `deliver`, plain or `async`.

    `deliver` returns when the message is stored at its destination. It may raise RetryAfter or
    Discard; Winch retries after any other exception. A worker process calls `async def aclose()` at
    its end, where the object has one.
    """

    def deliver(self, message: Message, /) -> Awaitable[None] | None:
        """Deliver one message; return when the destination has stored it."""


class HttpSink:
    """POST each message as a CloudEvent in structured JSON, signed by the Standard Webhooks rules.

    `secret` is "whsec_" followed by base64, or bytes. The sink uses HTTPS and public addresses only,
    unless `allow_private` is set for a service of your own. A 2xx reply means delivered. A 410 makes
    the message dead. All other replies, redirects included, are retried, after Retry-After where the
    reply has one.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | bytes,
        source: str = "winch",
        type: str | None = None,
        timeout: Duration = "10s",
        allow_private: bool = False,
        ca_file: str | None = None,
    ) -> None:
        self._target = target(url, allow_private=allow_private)
        self._secret = secret_bytes(secret)
        self._source = source
        self._type = type
        self._timeout = parse_duration(timeout, "timeout").total_seconds()
        if not 0 < self._timeout <= 600:
            raise ConfigError(f"the timeout of an HTTP sink must be up to 10 minutes, got {timeout!r}")
        self._ca_file = ca_file
        self._context: ssl.SSLContext | None = None

    async def deliver(self, message: Message) -> None:
        """Send one message; raises DeliveryRefused, RetryAfter or Discard when the receiver does not
        accept it.
        """
        body = cloud_event(message, source=self._source, type=self._type or message.topic)
        headers = {
            "Content-Type": "application/cloudevents+json; charset=utf-8",
            "User-Agent": "winch",
            **signed(body, message.id, self._secret),
        }
        if self._context is None and self._target.is_encrypted:
            self._context = ssl.create_default_context(cafile=self._ca_file)
        reply = await post(self._target, body, headers, timeout=self._timeout, context=self._context)
        if 200 <= reply.status < 300:
            return
        answer = f"{self._target.host} answered {reply.status}"
        if reply.status == 410:
            raise Discard(f"{answer}: the receiver refuses such messages")
        if reply.retry_after is not None:
            raise RetryAfter(f"{min(reply.retry_after, MAX_RETRY_AFTER)}s", answer)
        raise ConnectionError(answer)


class RedisSink:
    """Add each message to a Redis stream, with the fields `id`, `key` and `data`, the CloudEvent.

    The stream has the name of the topic, or `stream`. `max_length` trims it to about that many
    entries.
    """

    def __init__(
        self,
        url: str,
        *,
        stream: str | None = None,
        max_length: int | None = None,
        source: str = "winch",
        type: str | None = None,
    ) -> None:
        if url.startswith(("valkey://", "valkeys://")):
            url = url.replace("valkey", "redis", 1)
        if not url.startswith(("redis://", "rediss://")):
            raise ConfigError(f"a Redis sink takes a redis:// or rediss:// URL, got {url!r}")
        if max_length is not None and max_length < 1:
            raise ConfigError(f"max_length must be at least 1, got {max_length}")
        self._url = url
        self._stream = stream
        self._max_length = max_length
        self._source = source
        self._type = type
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()

    async def aclose(self) -> None:
        """Close the connections that this event loop has opened."""
        if (client := self._clients.pop(asyncio.get_running_loop(), None)) is not None:
            await client.aclose()

    async def deliver(self, message: Message) -> None:
        """Add one message to the stream."""
        event = cloud_event(message, source=self._source, type=self._type or message.topic)
        fields = {"id": message.id, "key": message.key or "", "data": event.decode()}
        client = self._client(asyncio.get_running_loop())
        await client.xadd(self._stream or message.topic, fields, maxlen=self._max_length)

    def _client(self, loop: asyncio.AbstractEventLoop) -> Any:
        """Connections belong to the event loop that opened them."""
        if loop not in self._clients:
            try:
                from redis.asyncio import Redis
            except ImportError as error:
                raise ConfigError("a Redis sink needs `pip install 'winch-jobs[redis]'`") from error
            self._clients[loop] = Redis.from_url(
                self._url, socket_timeout=10, socket_connect_timeout=5, max_connections=4
            )
        return self._clients[loop]


# -- the forms it travels in -------------------------------------------------------------------------


def cloud_event(message: Message, *, source: str, type: str) -> bytes:
    """The message as CloudEvents 1.0 in JSON. The same bytes in every attempt."""
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": message.id,
        "source": source,
        "type": type,
        "time": message.created_at.isoformat().replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "data": message.payload,
    }
    if message.key is not None:
        event["subject"] = message.key
        event["partitionkey"] = message.key
    if (trace := message.headers.get("traceparent")) is not None:
        event["traceparent"] = trace
    return msgspec.json.encode(event)


def secret_bytes(given: str | bytes, what: str = "an HTTP sink") -> bytes:
    """The bytes of a secret that a user gave. Raises ConfigError, which never holds the secret."""
    if isinstance(given, str):
        if not given.startswith("whsec_"):
            raise ConfigError(
                f"the secret of {what} is 'whsec_' and base64 of 24 to 64 random bytes, or bytes"
            )
        try:
            given = base64.b64decode(given.removeprefix("whsec_"), validate=True)
        except binascii.Error as error:
            raise ConfigError("what follows 'whsec_' in the secret is not base64") from error
    if not 16 <= len(given) <= 64:
        raise ConfigError(f"the secret of {what} must have 24 to 64 bytes, got {len(given)}")
    return given
