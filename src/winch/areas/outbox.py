"""The outbox: messages stored with the application's own writes, and delivered by workers.

    app.outbox.sink("orders", http="https://example.com/hooks", secret="whsec_…")

    with Session() as session, session.begin():
        session.add(order)
        app.outbox.add("orders", key="42", payload={"total": 990}, conn=session)

A message is a job: stored in the caller's transaction by the same statement as any other, and delivered
by a task of its topic. Its key is the FIFO key of that job. What holds for jobs holds for messages:
committed ones are delivered at least once, rolled back ones never were, those of one key go out one at a
time in the order they were stored, what cannot be delivered is retried and then dead, and `winch why`
explains what a message waits for.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from winch.areas.dead import purge
from winch.areas.replay import Replayed, replay
from winch.areas.sinks import HttpSink, Message, RedisSink, Sink
from winch.core.errors import ConfigError
from winch.core.lifecycle import JobState
from winch.core.policy.limits import Fifo
from winch.core.policy.retention import Retention
from winch.core.policy.retry import Retry
from winch.core.values import codec
from winch.engine.base.operation import Operation
from winch.engine.client.audit import actor
from winch.engine.client.twins import blocking, twin
from winch.engine.tasks.context import Context  # handlers are called with it, found by their annotations
from winch.engine.tasks.options import TaskOptions, check_queue, check_states
from winch.engine.tasks.task import AsyncTask, Task
from winch.storage.params import JobFilter

if TYPE_CHECKING:
    import uuid

    from winch.core.values.duration import Duration
    from winch.engine.client.client import Client
    from winch.engine.client.job import Job
    from winch.engine.tasks.runtime import Runtime

PREFIX = "outbox:"
TAG = "outbox"
# About a day: seconds at first, then every quarter of an hour.
DEFAULT_RETRY = Retry.exponential("1s", factor=2, max="15m", attempts=106)

F = TypeVar("F", bound=Callable[..., Any])


class Outbox:
    """`app.outbox`: add messages to topics, and define where topics go."""

    def __init__(self, client: Client, runtime: Runtime) -> None:
        self._client = client
        self._runtime = runtime
        self._topics: dict[str, _Topic] = {}

    def add(
        self,
        topic: str,
        *,
        payload: Any,
        key: str | None = None,
        conn: object = None,
        id: str | uuid.UUID | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Job[None]:
        """Store a message, inside the caller's transaction with `conn`.

        Messages of one `key` are delivered in their order; messages without a key in any order.
        """
        return self._client.enqueue(self._bound(topic, payload, key, conn, id, headers))

    async def aadd(
        self,
        topic: str,
        *,
        payload: Any,
        key: str | None = None,
        conn: object = None,
        id: str | uuid.UUID | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Job[None]:
        """`add` without blocking the event loop."""
        return await self._client.aenqueue(self._bound(topic, payload, key, conn, id, headers))

    @overload
    def sink(
        self,
        topic: str,
        to: None = None,
        /,
        *,
        queue: str = ...,
        retry: Retry = ...,
        on_death: str = ...,
    ) -> Callable[[F], F]: ...
    @overload
    def sink(
        self,
        topic: str,
        to: Callable[[Message], Any] | Sink | None = None,
        /,
        *,
        http: str | HttpSink | None = None,
        redis: str | RedisSink | None = None,
        secret: str | bytes | None = None,
        queue: str = ...,
        retry: Retry = ...,
        on_death: str = ...,
    ) -> Any: ...

    def sink(
        self,
        topic: str,
        to: Callable[[Message], Any] | Sink | None = None,
        /,
        *,
        http: str | HttpSink | None = None,
        redis: str | RedisSink | None = None,
        secret: str | bytes | None = None,
        queue: str = "default",
        retry: Retry = DEFAULT_RETRY,
        on_death: str = "block",
    ) -> Any:
        """Define where the messages of a topic go.

            @app.outbox.sink("orders")
            async def publish(message: winch.Message) -> None: ...

        Pass a function or an object with `deliver`, a URL as `http` with its `secret`, or a `redis`
        stream. Workers of `queue` deliver. With `on_death="block"` a dead message holds its key until
        it is replayed or deleted; with "skip" the next messages pass.
        """
        given = [one for one in (to, http, redis) if one is not None]
        if len(given) > 1:
            raise ConfigError(
                f"topic {topic!r} takes one sink: a function, http= or redis=; for several use a "
                "function that calls them, or add to a topic for each"
            )
        if secret is not None and not isinstance(http, str):
            raise ConfigError("secret= goes with http='https://…'; an HttpSink has its own")
        if not given:

            def decorate(fn: F) -> F:
                self.sink(topic, fn, queue=queue, retry=retry, on_death=on_death)
                return fn

            return decorate
        if isinstance(http, str):
            if secret is None:
                raise ConfigError(
                    f"messages of {topic!r} are signed: give the secret that the receiver checks them "
                    "with, sink(…, http='https://…', secret='whsec_…')"
                )
            http = HttpSink(http, secret=secret)
        if isinstance(redis, str):
            redis = RedisSink(redis)
        self._serve(topic, to or http or redis, queue, retry, on_death)
        return None

    def _serve(
        self,
        topic: str,
        sink: Any,
        queue: str,
        retry: Retry,
        on_death: str,
        retention: Retention | None = None,
    ) -> None:
        known = self._topics.get(topic)
        if known is not None and known.is_served:
            raise ConfigError(f"topic {topic!r} has a sink already")
        made = _Topic(self._client, topic, _delivery(topic, sink), queue, retry, on_death, retention)
        self._runtime.tasks.add(made.task)
        if (aclose := getattr(sink, "aclose", None)) is not None:
            self._runtime.add_lifespan(_closing(aclose))
        self._topics[topic] = made

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that have a sink in this code."""
        return tuple(sorted(name for name, one in self._topics.items() if one.is_served))

    # -- dead letters --------------------------------------------------------------------------------

    @blocking
    def list(
        self,
        topic: str | None = None,
        *,
        state: str | Sequence[str] | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Operation[tuple[builtins.list[Job[None]], str | None]]:
        """Messages, newest first, and the cursor of the next page."""
        which = msgspec.structs.replace(
            _which(topic), states=check_states(state), limit=limit, after=after
        )
        return (yield from self._client.page(which))

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

    @blocking
    def replay(
        self,
        topic: str | None = None,
        *,
        ids: Sequence[str] | None = None,
        rate: str | None = None,
        dry_run: bool = False,
    ) -> Operation[Replayed]:
        """Deliver dead messages again: those of a topic, those with these ids, or all."""
        if ids is not None and topic is not None:
            raise ConfigError("replay takes a topic or ids, not both")
        dead = msgspec.structs.replace(_which(topic), states=(JobState.DEAD,))
        which = dead if ids is None else ids
        driver = self._client.driver()
        return (yield from replay(driver, self._runtime, which, by=actor(), rate=rate, dry_run=dry_run))

    @twin(replay)
    def areplay(self) -> None:
        """`replay` without blocking the event loop."""

    @blocking
    def purge(self, topic: str, *, older_than: Duration, dry_run: bool = False) -> Operation[int]:
        """Delete the dead messages of a topic for good and return their number. Their keys continue."""
        return (
            yield from purge(
                self._client.driver(),
                older_than=older_than,
                keep=None,
                max_bytes=None,
                task=f"{PREFIX}{topic}",
                queue=None,
                dry_run=dry_run,
            )
        )

    @twin(purge)
    def apurge(self) -> None:
        """`purge` without blocking the event loop."""

    def _bound(
        self,
        topic: str,
        payload: Any,
        key: str | None,
        conn: object,
        id: str | uuid.UUID | None,
        headers: Mapping[str, str] | None,
    ) -> Any:
        known = self._topics.get(topic)
        if known is None:
            # A process that stores messages need not deliver them.
            known = _Topic(self._client, topic, None, "default", DEFAULT_RETRY, "block")
            self._topics[topic] = known
        fifo = None if key is None else known.fifo(key)
        task = known.task.using(fifo=fifo, conn=conn, id=id, headers=headers)
        return task.bind(payload=payload) if key is None else task.bind(payload=payload, key=key)


def _closing(aclose: Callable[[], Awaitable[None]]) -> Callable[[], AsyncGenerator[Any, None]]:
    """A sink is closed when a worker process has ended its last job."""

    async def lifespan() -> AsyncGenerator[Any, None]:
        yield {}
        await aclose()

    return lifespan


def _which(topic: str | None) -> JobFilter:
    return JobFilter(tag=TAG) if topic is None else JobFilter(task=f"{PREFIX}{topic}")


class _Topic:
    """A topic: the task that delivers its messages, and what a key of it is."""

    def __init__(
        self,
        client: Client,
        topic: str,
        delivery: Callable[..., Any] | None,
        queue: str,
        retry: Retry,
        on_death: str,
        retention: Retention | None = None,
    ) -> None:
        if not isinstance(topic, str) or not topic or not topic.isprintable() or ":" in topic:
            raise ConfigError(f"a topic must be a printable text without ':', got {topic!r}")
        if len(topic) > codec.MAX_NAME_CHARS // 2:
            raise ConfigError(f"a topic must have at most {codec.MAX_NAME_CHARS // 2} characters")
        Fifo(topic, on_death=on_death)  # its error lists the values of on_death
        self.is_served = delivery is not None
        self._on_death = on_death
        options = TaskOptions(queue=check_queue(queue), retry=retry, tags=(TAG,), retention=retention)
        handler = delivery or _delivery(topic, _undeliverable)
        kind = AsyncTask if inspect.iscoroutinefunction(handler) else Task
        self.task: Task[Any, None] = kind(client, f"{PREFIX}{topic}", handler, options)

    def fifo(self, key: str) -> Fifo:
        return Fifo(f"{self.task.name}:{key}", on_death=self._on_death)


def _undeliverable(message: Message) -> None:
    raise ConfigError(f"topic {message.topic!r} has no sink here")  # pragma: no cover  # never runs


def _delivery(topic: str, to: Any) -> Callable[..., Any]:
    """The handler of the jobs of a topic."""
    deliver = getattr(to, "deliver", to)
    if not callable(deliver):
        raise ConfigError(
            f"the sink of topic {topic!r} must be a function or have a method deliver, got {to!r}"
        )
    if inspect.iscoroutinefunction(deliver):

        async def adeliver(payload: Any, key: str | None = None, *, ctx: Context) -> None:
            await deliver(_message(topic, payload, key, ctx))

        return adeliver

    def sync_deliver(payload: Any, key: str | None = None, *, ctx: Context) -> None:
        deliver(_message(topic, payload, key, ctx))

    return sync_deliver


def _message(topic: str, payload: Any, key: str | None, ctx: Context) -> Message:
    return Message(
        id=ctx.job_id,
        topic=topic,
        key=key,
        payload=payload,
        created_at=ctx.created_at,
        attempt=ctx.attempt,
        headers=ctx.headers,
    )
