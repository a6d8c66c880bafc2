"""The operations behind `app.queues`: settings that take effect while everything runs, and pauses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from winch.core.errors import ConfigError
from winch.core.gates import GateSpec
from winch.core.policy.queue_settings import NO_SETTINGS, QueueSettings, changed
from winch.core.values.duration import Duration, parse_duration
from winch.core.values.redact import mask_text
from winch.engine.base.operation import Operation
from winch.engine.client.audit import actor, noted
from winch.engine.client.backpressure import BOOK, PAUSED, UNTIL, read_settings
from winch.engine.client.rebind import bind_queue
from winch.storage.params import Line, Lines
from winch.storage.protocol import Driver

# More than ever run at once: a limit that holds nobody.
MOST = 1_000_000


def settings(driver: Driver) -> Operation[dict[str, QueueSettings]]:
    """What is set, by queue."""
    _check(driver)
    return read_settings((yield driver.read_lines(Lines(book=BOOK))))


def configure(driver: Driver, queue: str, given: Mapping[str, Any]) -> Operation[QueueSettings]:
    """Set what is given, also for the jobs that wait in the queue. Two who set the same queue at once:
    the later one's word counts."""
    _check(driver)
    if given.get("concurrency") is not None and not driver.capabilities.has_gates:
        raise ConfigError(f"concurrency of a queue is not available on {driver.describe()} yet")
    before = (yield from settings(driver)).get(queue, NO_SETTINGS)
    after = changed(before, given)
    if "concurrency" in given and driver.capabilities.has_gates:
        n = after.concurrency
        # Taken back: jobs that carry the gate must not wait at it for ever.
        spec = GateSpec(MOST if n is None else n)
        yield driver.set_limits({f"queue:{queue}": spec}, by=actor())
    if after == NO_SETTINGS:
        yield driver.strike_lines(BOOK, [queue])
    else:
        body = msgspec.json.encode(after).decode()
        yield driver.write_lines([Line(book=BOOK, key=queue, body=body)])
    if "concurrency" in given or "order" in given:
        yield from bind_queue(driver, queue, after)
    if given:
        yield from noted(driver, "configure queue", queue, settings=_shown(given))
    return after


def _shown(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON data; a duration as text."""
    return {key: str(value) if isinstance(value, timedelta) else value for key, value in given.items()}


def pause(
    driver: Driver,
    queue: str,
    reason: str | None,
    until: Duration | datetime | None,
    now: datetime,
    *,
    by: str | None = None,
) -> Operation[None]:
    """Pause a queue, for a time where one is given."""
    lines = []
    if until is not None:
        _check(driver)
        if isinstance(until, datetime):
            if until.tzinfo is None:
                raise ConfigError(f"until must have a time zone, got {until!r}")
            span = until - now
        else:
            span = parse_duration(until, "until")
        if span <= timedelta(0):
            raise ConfigError(f"until must be a time to come, got {until!r}")
        ends = f"until {now + span:%Y-%m-%d %H:%M:%S} UTC"
        reason = f"{reason} ({ends})" if reason else ends
        lines = [
            Line(book=BOOK, key=PAUSED + queue, body="{}", keep=span),
            Line(book=BOOK, key=UNTIL + queue, body="{}"),
        ]
    if driver.capabilities.keeps_books:
        yield driver.strike_lines(BOOK, [UNTIL + queue, PAUSED + queue])
    # Everybody who looks at the queue or at a job in it reads the reason.
    reason = None if reason is None else mask_text(reason)
    yield driver.pause(queue, by=by or actor(), reason=reason)
    if lines:
        yield driver.write_lines(lines)
    yield from noted(driver, "pause queue", queue, reason=reason)


def resume(driver: Driver, queue: str, *, by: str | None = None) -> Operation[None]:
    if driver.capabilities.keeps_books:
        yield driver.strike_lines(BOOK, [UNTIL + queue, PAUSED + queue])
    yield driver.resume(queue, by=by or actor())
    yield from noted(driver, "resume queue", queue)


def _check(driver: Driver) -> None:
    if not driver.capabilities.keeps_books:
        raise ConfigError(f"settings of queues are not available on {driver.describe()}")
