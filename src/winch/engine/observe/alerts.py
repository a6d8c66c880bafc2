"""Alerts: what an operator should know, from the store's own numbers, sent to the log and a webhook.

Any number of servers and workers may look, and each leaves the look to another that has just done it:
counting queues is not free. What is known to fire is kept in the store's books, so that an alert is sent
once when it begins and once when it is over. Two that look in the same moment may both send it: the
message has the same id then, and a receiver drops the second. A webhook that does not answer is tried
again with the next look.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from winch.core.errors import ConfigError, DeliveryRefused
from winch.core.lifecycle import JobState
from winch.core.policy.alerting import AlertRules
from winch.core.values.duration import format_duration
from winch.core.values.ip_address import parse_networks
from winch.core.values.redact import mask_text
from winch.engine.base.log import log
from winch.engine.base.operation import Operation, arun
from winch.engine.base.service import Service
from winch.engine.base.settings import Settings
from winch.engine.observe import throughput, webhook
from winch.engine.observe.store_numbers import dead_letters, oldest_snapshot
from winch.engine.observe.throughput import MINUTE, Series
from winch.engine.tasks.schedules import Schedule, schedule_of
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import QueueInfo
from winch.storage.protocol import Driver

BOOK = "alert"
LOOKS = "alert.look"
LOOK_EVERY = 15.0
KEEP = timedelta(days=7)
# Rates are of the last five minutes, and of enough attempts to mean something.
MINUTES = 5
LEAST_ATTEMPTS = 20


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong now."""

    rule: str
    target: str
    value: float
    text: str

    @property
    def key(self) -> str:
        return f"{self.rule}:{self.target}"


class KeptAlert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert as the books keep it. `is_sent`: the webhook has accepted its latest state."""

    alert: Alert
    since: datetime
    is_over: bool = False
    is_sent: bool = False


def firing(
    rules: AlertRules,
    queues: Iterable[QueueInfo],
    series: Series,
    schedules: Iterable[Schedule],
    now: datetime,
    *,
    dead: Mapping[str, int] | None = None,
    snapshot: timedelta = timedelta(0),
) -> list[Alert]:
    """What is wrong, by these numbers. `dead`: how many dead jobs of each task are kept; `snapshot`: the
    age of the oldest transaction that holds up vacuum."""
    return [
        *_of_queues(rules, queues, now),
        *_of_tasks(rules, series),
        *_of_schedules(rules, schedules),
        *_of_dead_letters(rules, dead or {}),
        *_of_snapshots(rules, snapshot),
    ]


def _of_dead_letters(rules: AlertRules, dead: Mapping[str, int]) -> Iterator[Alert]:
    for task, number in dead.items():
        if rules.dead_letters is not None and number >= rules.dead_letters:
            text = f"{number:,} dead jobs of {task} are kept: look at them with winch dead groups"
            yield Alert(rule="dead_letters", target=task, value=number, text=text)


def _of_snapshots(rules: AlertRules, age: timedelta) -> Iterator[Alert]:
    if rules.snapshot is not None and age >= rules.snapshot:
        text = f"a transaction has been open for {_span(age)}: vacuum cannot remove the rows it may see"
        yield Alert(rule="snapshot", target="store", value=age.total_seconds(), text=text)


def _of_queues(rules: AlertRules, queues: Iterable[QueueInfo], now: datetime) -> Iterator[Alert]:
    for queue in queues:
        ready = queue.counts.get(JobState.READY, 0)
        if rules.depth is not None and ready >= rules.depth:
            more = " or more" if JobState.READY in queue.inexact else ""
            text = f"queue {queue.name} has {ready:,}{more} ready jobs"
            yield Alert(rule="depth", target=queue.name, value=ready, text=text)
        if queue.oldest_ready_at is None or queue.paused_at is not None:
            continue
        age = now - queue.oldest_ready_at
        waits = f"the oldest ready job of queue {queue.name} has waited {_span(age)}"
        if not queue.sessions:
            if rules.workers is not None and age >= rules.workers:
                text = f"{waits}, and no worker serves it"
                yield Alert(rule="workers", target=queue.name, value=age.total_seconds(), text=text)
        elif rules.oldest is not None and age >= rules.oldest:
            yield Alert(rule="oldest", target=queue.name, value=age.total_seconds(), text=waits)


def _of_tasks(rules: AlertRules, series: Series) -> Iterator[Alert]:
    for task, rate in series.by_task().items():
        share = rate.broken / rate.ended if rate.ended else 0.0
        if rules.failures is not None and rate.ended >= LEAST_ATTEMPTS and share >= rules.failures:
            text = f"{share:.0%} of {rate.ended:,} attempts of {task} failed in {MINUTES} minutes"
            yield Alert(rule="failures", target=task, value=round(share, 4), text=text)
        if rules.dead is not None and rate.deaths >= rules.dead:
            text = f"{rate.deaths:,} jobs of {task} died in {MINUTES} minutes"
            yield Alert(rule="dead", target=task, value=rate.deaths, text=text)


def _of_schedules(rules: AlertRules, schedules: Iterable[Schedule]) -> Iterator[Alert]:
    for one in schedules:
        late = one.late_by
        if rules.schedules is not None and late is not None and late >= rules.schedules:
            text = f"schedule {one.name} is {_span(late)} late"
            yield Alert(rule="schedules", target=one.name, value=late.total_seconds(), text=text)


def _span(length: timedelta) -> str:
    return format_duration(timedelta(seconds=int(length.total_seconds())))


def kept_alerts(driver: Driver) -> Operation[list[KeptAlert]]:
    """What fires now, as the last look found it."""
    lines: list[KvRecord] = yield driver.kv_list(KvFilter(book=BOOK))
    kept = [msgspec.json.decode(line.body, type=KeptAlert) for line in lines]
    return [one for one in kept if not one.is_over]


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """Where alerts are sent, and how they are signed."""

    url: str
    secret: str | None = None
    networks: str = ""

    def send(self, body: bytes, message_id: str) -> None:
        webhook.send(
            self.url,
            body,
            message_id=message_id,
            content_type="application/cloudevents+json",
            secret=self.secret,
            allowed=parse_networks(self.networks, "alert_networks"),
        )


# A look counts so many jobs of a queue, or as many as the rule asks for.
CAP = 10_000


class _Look(msgspec.Struct, frozen=True):
    by: str
    at: datetime


class Alerts(Service):
    """Looks every few seconds, and reports what has begun and what is over."""

    name = "alerts"
    is_vital = False

    def __init__(self, driver: Driver, rules: AlertRules, hook: Hook | None = None) -> None:
        super().__init__()
        self._driver = driver
        self._rules = rules
        self._hook = hook
        self._me = secrets.token_hex(8)

    async def run_once(self) -> float:
        if self._rules.are_off:
            return LOOK_EVERY * 4
        driver, now = self._driver, datetime.now(UTC)
        if await self._is_done_by_another(now):
            return LOOK_EVERY * random.uniform(0.5, 1.0)  # noqa: S311  # not to look all at once
        queues = await driver.arun(driver.queues(cap=max(CAP, self._rules.depth or 0)))
        series = await arun(driver, throughput.read(driver, MINUTE, int(time.time()), MINUTES))
        schedules = await arun(driver, _schedules(driver))
        dead = await arun(driver, dead_letters(driver))
        snapshot = await arun(driver, oldest_snapshot(driver))
        firing_now = firing(
            self._rules, queues, series, schedules, now, dead=dead, snapshot=snapshot or timedelta(0)
        )
        found = {alert.key: alert for alert in firing_now}
        lines = await driver.arun(driver.kv_list(KvFilter(book=BOOK)))
        kept = {line.key: msgspec.json.decode(line.body, type=KeptAlert) for line in lines}
        for key, alert in found.items():
            if key not in kept or kept[key].is_over:
                kept[key] = KeptAlert(alert=alert, since=now)
                log.warning("alert: %s", alert.text)
                await self._write(key, kept[key])
        for key, one in list(kept.items()):
            if key not in found and not one.is_over:
                kept[key] = KeptAlert(alert=one.alert, since=one.since, is_over=True)
                log.info("alert over: %s", one.alert.text)
                await self._write(key, kept[key])
        await self._notify(kept)
        return LOOK_EVERY

    async def _is_done_by_another(self, now: datetime) -> bool:
        lines = await self._driver.arun(self._driver.kv_list(KvFilter(book=LOOKS)))
        for line in lines:
            look = msgspec.json.decode(line.body, type=_Look)
            age = (now - look.at).total_seconds()
            if look.by != self._me and -LOOK_EVERY < age < LOOK_EVERY * 1.5:
                return True
        body = msgspec.json.encode(_Look(self._me, now)).decode()
        line = KvRecord(book=LOOKS, key="look", body=body, keep=timedelta(minutes=5))
        await self._driver.arun(self._driver.kv_put([line]))
        return False

    async def _write(self, key: str, one: KeptAlert) -> None:
        line = KvRecord(book=BOOK, key=key, body=msgspec.json.encode(one).decode(), keep=KEEP)
        await self._driver.arun(self._driver.kv_put([line]))

    async def _notify(self, kept: Mapping[str, KeptAlert]) -> None:
        """Send what the webhook has not accepted yet; what is over and sent is forgotten."""
        for key, one in kept.items():
            is_sent = one.is_sent
            if not is_sent and self._hook is not None:
                body, message_id = message(one, self._driver.describe())
                try:
                    await asyncio.to_thread(self._hook.send, body, message_id)
                    is_sent = True
                except (DeliveryRefused, ConfigError) as error:
                    log.error("the alert %r is not delivered yet: %s", key, mask_text(str(error)))
            if one.is_over and (is_sent or self._hook is None):
                await self._driver.arun(self._driver.kv_delete(BOOK, [key]))
            elif is_sent and not one.is_sent:
                await self._write(key, msgspec.structs.replace(one, is_sent=True))


def alerts_of(driver: Driver, settings: Settings) -> Alerts:
    """The alerts that these settings ask for; raises ConfigError where the webhook cannot be one."""
    hook = None
    if settings.alert_webhook is not None:
        webhook.target(settings.alert_webhook)
        parse_networks(settings.alert_networks or "", "alert_networks")
        hook = Hook(
            url=settings.alert_webhook,
            secret=settings.alert_secret,
            networks=settings.alert_networks or "",
        )
    return Alerts(driver, settings.alerts, hook)


def _schedules(driver: Driver) -> Operation[list[Schedule]]:
    listed = yield driver.schedules()
    return [schedule_of(row, listed.now) for row in listed.found]


def message(one: KeptAlert, store: str) -> tuple[bytes, str]:
    """An alert as a CloudEvent, and its id: the same in every process that sends it."""
    word = "resolved" if one.is_over else "firing"
    # By the minute: two that noticed it within a second agree.
    begun = one.since.replace(second=0, microsecond=0).isoformat()
    digest = hashlib.sha256(f"{store}\0{one.alert.key}\0{begun}\0{word}".encode()).hexdigest()[:32]
    body = {
        "specversion": "1.0",
        "id": digest,
        "source": "urn:winch:alerts",
        "type": f"dev.winch.alert.{word}",
        "subject": one.alert.target,
        "time": datetime.now(UTC),
        "datacontenttype": "application/json",
        "data": {
            "rule": one.alert.rule,
            "target": one.alert.target,
            "value": one.alert.value,
            "text": one.alert.text,
            "since": one.since,
            "store": mask_text(store),
        },
    }
    return msgspec.json.encode(body), digest
