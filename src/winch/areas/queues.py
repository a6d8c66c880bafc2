"""`app.queues`: look at queues, pause and resume them, change their settings while workers run."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from winch.areas.queue_jobs import Moved, Purged, move_jobs, purge_queue
from winch.core.errors import ConfigError
from winch.core.policy.queue_settings import NO_SETTINGS, Order, QueueRule, QueueSettings, changed
from winch.core.values.duration import Duration, parse_duration
from winch.core.values.redact import mask_text
from winch.engine.base.operation import Operation
from winch.engine.client.audit import actor, noted
from winch.engine.client.backpressure import BOOK, PAUSED, UNTIL, pause_records, read_settings
from winch.engine.client.client import Client
from winch.engine.client.twins import blocking, twin
from winch.engine.moving.holding import refuse_resume
from winch.engine.moving.routed_driver import is_routed
from winch.engine.tasks.options import check_queue
from winch.engine.tasks.task import Unset
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import QueueInfo

if TYPE_CHECKING:
    from winch.core.policy.retry import Retry


class Queues:
    """`app.queues`: list, pause, resume, purge and configure queues."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @blocking
    def list(self) -> Operation[builtins.list[QueueInfo]]:
        """Every queue that has live jobs, settings or a worker, by name."""
        found: builtins.list[QueueInfo] = yield self._client.driver().queues()
        return found

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

    @blocking
    def pause(
        self, queue: str, *, reason: str | None = None, until: Duration | datetime | None = None
    ) -> Operation[None]:
        """Stop claims from this queue; running jobs continue. With `until`, a worker resumes it at
        that time.
        """
        check_queue(queue)
        driver = self._client.driver()
        lines = []
        if until is not None:
            now = self._client.surroundings.clock.now()
            span = _time_left(until, now)
            ends = f"until {now + span:%Y-%m-%d %H:%M:%S} UTC"
            reason = f"{reason} ({ends})" if reason else ends
            lines = pause_records(queue, now + span, now)
        yield driver.kv_delete(BOOK, [UNTIL + queue, PAUSED + queue])
        # The reason is shown with the queue and with every job in it.
        reason = None if reason is None else mask_text(reason)
        yield driver.pause(queue, by=actor(), reason=reason)
        if lines:
            yield driver.kv_put(lines)
        yield from noted(driver, "pause queue", queue, reason=reason)

    @twin(pause)
    def apause(self) -> None:
        """`pause` without blocking the event loop."""

    @blocking
    def resume(self, queue: str) -> Operation[None]:
        """Let workers claim from this queue again, and producers enqueue into one that drains."""
        check_queue(queue)
        driver = self._client.driver()
        if not is_routed(driver):  # one that knows both stores resumes the queue where it runs
            found: builtins.list[QueueInfo] = yield driver.queues()
            for one in found:
                if one.name == queue:
                    yield from refuse_resume(driver, f"queue {queue!r}", one.pause_reason)
        yield driver.kv_delete(BOOK, [UNTIL + queue, PAUSED + queue])
        yield driver.resume(queue, by=actor())
        if (yield from self._settings()).get(queue, NO_SETTINGS).draining:
            yield from self._put(queue, {"draining": None})
        yield from noted(driver, "resume queue", queue)

    @twin(resume)
    def aresume(self) -> None:
        """`resume` without blocking the event loop."""

    @blocking
    def configure(
        self,
        /,
        queue: str,
        *,
        concurrency: int | Unset | None = msgspec.UNSET,
        retries: int | Unset | None = msgspec.UNSET,
        backoff: Duration | Retry | Unset | None = msgspec.UNSET,
        max_depth: int | Unset | None = msgspec.UNSET,
        max_age: Duration | Unset | None = msgspec.UNSET,
        on_full: Literal["reject", "block", "shed", "delay"] | Unset | None = msgspec.UNSET,
        block_for: Duration | Unset | None = msgspec.UNSET,
        drain: str | Unset | None = msgspec.UNSET,
        order: Literal["aged", "strict"] | Unset | None = msgspec.UNSET,
        **unknown: Any,
    ) -> Operation[QueueSettings]:
        """Change settings of a queue, for all workers and producers, within two seconds. Returns all
        its settings.

            app.queues.configure("mail", concurrency=5, max_depth=10_000, on_full="reject")

        None removes a setting.

        - `concurrency`: how many jobs of the queue run at once in the whole fleet.
        - `retries`, `backoff`: replace the policy of the task. `backoff` is one delay, a `Retry`, or
          words such as "exponential 2s max=5m".
        - `max_depth`, `max_age`: the queue is full with this many ready jobs, or an oldest job of this
          age.
        - `on_full`: "reject" raises QueueFull; "block" waits up to `block_for` first; "shed" drops jobs
          with a priority below 0; "delay" postpones jobs so that `drain` ("100/s") arrive.
        - `order`: "aged" gives each level of priority a head start of a minute, so nothing starves.
          "strict" runs jobs by priority alone.
        """
        given = {
            "concurrency": concurrency,
            "retries": retries,
            "backoff": backoff,
            "max_depth": max_depth,
            "max_age": max_age,
            "on_full": on_full,
            "block_for": block_for,
            "drain": drain,
            "order": order,
            **unknown,
        }
        chosen = {name: value for name, value in given.items() if value is not msgspec.UNSET}
        return (yield from self._configure(check_queue(queue), chosen))

    @twin(configure)
    def aconfigure(self) -> None:
        """`configure` without blocking the event loop."""

    @blocking
    def purge(self, queue: str, *, dry_run: bool = False) -> Operation[Purged]:
        """Remove the jobs that wait in this queue; running jobs continue. Returns the counts.

        Jobs that a flow, a batch or another job waits for are cancelled; all others are deleted for
        good. With `dry_run` it only counts.
        """
        return (yield from purge_queue(self._client.driver(), check_queue(queue), dry_run=dry_run))

    @twin(purge)
    def apurge(self) -> None:
        """`purge` without blocking the event loop."""

    @blocking
    def drain(self, queue: str, *, reason: str | None = None) -> Operation[None]:
        """Take no new jobs until `resume`: workers empty the queue. An enqueue raises QueueFull, at the
        latest a second from now. Jobs that retry, schedules and flows still come in.
        """
        yield from self._put(check_queue(queue), {"draining": True})
        yield from noted(self._client.driver(), "drain queue", queue, reason=reason)

    @twin(drain)
    def adrain(self) -> None:
        """`drain` without blocking the event loop."""

    @blocking
    def move(
        self,
        queue: str,
        to: str,
        *,
        task: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Operation[Moved]:
        """Move the jobs that wait in this queue into another one, the newest first. Returns the counts.

        Running jobs stay. `task` and `limit` choose some of them. With `dry_run` it only counts.
        """
        driver = self._client.driver()
        return (
            yield from move_jobs(
                driver, check_queue(queue), check_queue(to), task=task, limit=limit, dry_run=dry_run
            )
        )

    @twin(move)
    def amove(self) -> None:
        """`move` without blocking the event loop."""

    @blocking
    def settings(self) -> Operation[dict[str, QueueSettings]]:
        """The settings of all queues that have any, by name."""
        return (yield from self._settings())

    @twin(settings)
    def asettings(self) -> None:
        """`settings` without blocking the event loop."""

    def _settings(self) -> Operation[dict[str, QueueSettings]]:
        driver = self._client.driver()
        return read_settings((yield driver.kv_list(KvFilter(book=BOOK))))

    def _configure(self, queue: str, given: Mapping[str, Any]) -> Operation[QueueSettings]:
        after = yield from self._put(queue, given)
        if given:
            yield from noted(self._client.driver(), "configure queue", queue, settings=_shown(given))
        return after

    def _put(self, queue: str, given: Mapping[str, Any]) -> Operation[QueueSettings]:
        """Set what is given. When two callers set the same queue at once, the later one wins."""
        driver = self._client.driver()
        before = (yield from self._settings()).get(queue, NO_SETTINGS)
        after = changed(before, given)
        if after == NO_SETTINGS:
            yield driver.kv_delete(BOOK, [queue])
        else:
            body = msgspec.json.encode(after).decode()
            yield driver.kv_put([KvRecord(book=BOOK, key=queue, body=body)])
        if "concurrency" in given or "order" in given:
            is_strict = after.order is Order.STRICT
            rule = QueueRule(concurrency=after.concurrency, is_strict=is_strict)
            yield driver.set_queue(queue, rule)
        return after


def _time_left(until: Duration | datetime, now: datetime) -> timedelta:
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise ConfigError(f"until must have a time zone, got {until!r}")
        span = until - now
    else:
        span = parse_duration(until, "until")
    if span <= timedelta(0):
        raise ConfigError(f"until must be in the future, got {until!r}")
    return span


def _shown(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON data; a duration as text."""
    return {key: str(value) if isinstance(value, timedelta) else value for key, value in given.items()}
