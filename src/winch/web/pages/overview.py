"""The overview: how it goes now, and how it went."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from starlette.responses import Response

from winch.core.lifecycle import JobState
from winch.engine.observe import throughput
from winch.engine.observe.alerts import kept_alerts
from winch.engine.observe.throughput import HOUR, MINUTE, Series, TaskRate, percentile
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import GroupFilter, QueueInfo, SessionInfo
from winch.web.access import EVERY_NARROWING
from winch.web.api.queues import CAP
from winch.web.draw.charts import Chart, ChartRow, bars, lines
from winch.web.draw.pieces import Tile
from winch.web.pages.base import page
from winch.web.pages.show import span
from winch.web.routes import WebCall, WebRoute
from winch.web.schemas import group_out

# name -> (resolution, spans, spans in one bar)
RANGES = {
    "15m": (MINUTE, 15, 1),
    "1h": (MINUTE, 60, 1),
    "6h": (MINUTE, 360, 6),
    "24h": (HOUR, 24, 1),
    "7d": (HOUR, 168, 3),
    "30d": (HOUR, 720, 12),
}
BACKLOG = "rate.backlog"
TONES = ("tone-a", "tone-b", "tone-c", "tone-d", "tone-e", "tone-f")


class OverviewQuery(msgspec.Struct, frozen=True, kw_only=True):
    range: str = "1h"
    did: str = ""


class QueueSample(msgspec.Struct, frozen=True):
    ready: int
    running: int


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What was there in one minute: written by servers, the last one of a minute counts."""

    queues: dict[str, QueueSample]
    slots: int
    busy: int


def sample_line(queues: list[QueueInfo], sessions: list[SessionInfo], now: float) -> KvRecord:
    """This minute's sample as a line of the books."""
    sample = Sample(
        queues={
            queue.name: QueueSample(
                queue.counts.get(JobState.READY, 0), queue.counts.get(JobState.RUNNING, 0)
            )
            for queue in queues[:200]
        },
        slots=sum(session.slots for session in sessions),
        busy=sum(session.running for session in sessions),
    )
    return KvRecord(
        book=BACKLOG,
        key=f"{int(now) // 60:010}",
        body=msgspec.json.encode(sample).decode(),
        keep=timedelta(days=31),
    )


async def overview(call: WebCall) -> Response:
    site, driver = call.site, call.site.driver
    chosen = call.query.range if call.query.range in RANGES else "1h"
    resolution, count, fold = RANGES[chosen]
    now = int(time.time())
    if call.access.is_narrow:
        return await page(call, "narrow.html", title="Overview")
    series = await site.client.arun(throughput.read(driver, resolution, now, count))
    recent = await site.client.arun(throughput.read(driver, MINUTE, now, 5))
    counts = await driver.arun(driver.counts(cap=CAP))
    queues, sessions = await site.queues(), await site.live_sessions()
    groups = await driver.arun(driver.groups(GroupFilter(limit=5)))
    folded = _fold(series, fold)
    labels = _labels(series, fold)
    total = series.total()
    return await page(
        call,
        "overview.html",
        title="Overview",
        chosen=chosen,
        ranges=tuple(RANGES),
        tiles=_tiles(recent, counts, queues, sessions),
        counts=counts,
        cap=CAP,
        charts=[
            _throughput(folded, labels, chosen),
            _latency("Run time", "run", folded, labels, total),
            _latency("Wait in queue", "wait", folded, labels, total),
            await _backlog(call, chosen),
        ],
        groups=[group_out(group) for group in groups],
        slowest=_slowest(series),
        warnings=[*_warnings(queues, sessions), *await _alerts(call)],
        is_empty=not total.ended and not sum(counts.values()),
        queues=sorted(queues, key=lambda q: -q.counts.get(JobState.READY, 0))[:6],
    )


def _fold(series: Series, fold: int) -> list[TaskRate]:
    merged = series.merged()
    folded = []
    for start in range(0, len(merged), fold):
        one = TaskRate()
        for rate in merged[start : start + fold]:
            one.add(rate)
        folded.append(one)
    return folded


def _labels(series: Series, fold: int) -> list[str]:
    times = series.times[::fold]
    is_long = len(series.rates) * series.span.seconds > 86_400
    form = "%d %b %H:%M" if is_long else "%H:%M"
    return [datetime.fromtimestamp(at, UTC).strftime(form) for at in times]


def _tiles(
    recent: Series, counts: Any, queues: list[QueueInfo], sessions: list[SessionInfo]
) -> list[Tile]:
    total = recent.total()
    now = datetime.now(UTC)
    oldest = min((q.oldest_ready_at for q in queues if q.oldest_ready_at), default=None)
    waits = None if oldest is None else now - oldest
    slots = sum(session.slots for session in sessions)
    busy = sum(session.running for session in sessions)
    broken = 100 * total.broken / total.ended if total.ended else None
    dead = counts.get(JobState.DEAD, 0)
    return [
        Tile("Processed", f"{total.ended / 5:,.0f}", "/min", "mean of 5 minutes"),
        Tile("Failed attempts", "–" if broken is None else f"{broken:.1f}", "%", "of the last 5 minutes",
             "warn" if broken is not None and broken >= 10 else ""),
        Tile("Wait p95", span(percentile(total.wait, 0.95)), note="last 5 minutes"),
        Tile("Run p95", span(percentile(total.run, 0.95)), note="last 5 minutes"),
        Tile("Oldest ready", span(waits), note="waits in queue",
             look="bad" if waits is not None and waits > timedelta(seconds=60) else ""),
        Tile("Busy slots", f"{busy:,}", f"/ {slots:,}",
             "1 worker" if len(sessions) == 1 else f"{len(sessions):,} workers"),
        Tile("Dead", f"{dead:,}{'+' if dead >= CAP else ''}", note="kept until you act",
             look="bad" if dead else ""),
    ]  # fmt: skip


def _throughput(folded: list[TaskRate], labels: list[str], chosen: str) -> Chart:
    rows = [
        ChartRow("completed", "tone-completed", [rate.completed for rate in folded]),
        ChartRow("cancelled", "tone-cancelled", [rate.cancelled for rate in folded]),
        ChartRow(
            "failed, retried",
            "tone-retrying",
            [rate.broken - rate.dead for rate in folded],
        ),
        ChartRow("dead", "tone-dead", [rate.deaths for rate in folded]),
    ]
    done = sum(rate.completed for rate in folded)
    broken = sum(rate.broken for rate in folded)
    summary = f"{done:,} attempts completed and {broken:,} failed in the last {chosen}."
    return bars("Attempts that ended", rows, labels, summary)


def _latency(title: str, what: str, folded: list[TaskRate], labels: list[str], total: TaskRate) -> Chart:
    rows = [
        ChartRow(name, tone, [percentile(getattr(rate, what), share) for rate in folded])
        for name, tone, share in (
            ("p50", "tone-completed", 0.5),
            ("p95", "tone-running", 0.95),
            ("p99", "tone-dead", 0.99),
        )
    ]
    middle, high = (percentile(getattr(total, what), share) for share in (0.5, 0.95))
    summary = f"Half took less than {span(middle)}, 95 % less than {span(high)}."
    return lines(title, rows, labels, summary, unit="s")


async def _backlog(call: WebCall, chosen: str) -> Chart:
    """Ready jobs by queue over time, from the samples that servers take."""
    resolution, count, fold = RANGES[chosen]
    minutes = count * resolution.seconds // 60
    step = fold * resolution.seconds // 60
    last = int(time.time()) // 60
    start = last - minutes + 1
    driver = call.site.driver
    found: dict[int, Sample] = {}
    which = KvFilter(book=BACKLOG, after=f"{start - 1:010}", limit=50_000)
    for line in await driver.arun(driver.kv_list(which)):
        place = (int(line.key) - start) // step
        found[place] = msgspec.json.decode(line.body, type=Sample)
    size = minutes // step
    names: dict[str, int] = {}
    for sample in found.values():
        for name, queue in sample.queues.items():
            names[name] = max(names.get(name, 0), queue.ready)
    top = sorted((n for n in names if names[n]), key=lambda n: -names[n])[: len(TONES)]
    rows = [
        ChartRow(
            name,
            tone,
            [
                None if n not in found else found[n].queues.get(name, QueueSample(0, 0)).ready
                for n in range(size)
            ],
        )
        for name, tone in zip(top, TONES, strict=False)
    ]
    form = "%d %b %H:%M" if minutes > 1440 else "%H:%M"
    labels = [datetime.fromtimestamp((start + n * step) * 60, UTC).strftime(form) for n in range(size)]
    summary = (
        f"The longest queue was {top[0]} with {names[top[0]]:,} ready jobs."
        if top
        else "No queue had jobs waiting when a server looked."
    )
    return lines("Ready jobs by queue", rows, labels, summary)


def _slowest(series: Series) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "task": task,
            "ended": rate.ended,
            "failed": 100 * rate.broken / rate.ended if rate.ended else 0.0,
            "p95": percentile(rate.run, 0.95),
            "mean": rate.run_seconds / max(sum(rate.run.values()), 1),
        }
        for task, rate in series.by_task().items()
    ]
    return sorted(found, key=lambda row: -(row["p95"] or 0))[:6]


async def _alerts(call: WebCall) -> list[str]:
    """The alerts that fire and that no warning covers already."""
    kept = await call.site.client.arun(kept_alerts(call.site.driver))
    return [f"{one.alert.text.capitalize()}." for one in kept if one.alert.rule != "workers"]


def _warnings(queues: list[QueueInfo], sessions: list[SessionInfo]) -> list[str]:
    found = []
    waiting = [queue for queue in queues if queue.counts.get(JobState.READY, 0)]
    alone = [queue.name for queue in waiting if not queue.sessions]
    if alone:
        word = "queue" if len(alone) == 1 else "queues"
        found.append(f"No worker serves {word} {', '.join(alone)}, and jobs wait there.")
    paused = [queue.name for queue in queues if queue.paused_at is not None]
    if paused:
        found.append(f"Paused: {', '.join(paused)}.")
    releases = sorted({s.release for s in sessions if s.release and not s.release.startswith("http:")})
    if len(releases) > 1:
        found.append(f"Workers run different releases: {', '.join(releases)}.")
    now = datetime.now(UTC)
    late = [s.worker for s in sessions if s.lease_until < now]
    if late:
        found.append(f"The lease of {', '.join(late[:5])} is over: its jobs are taken back.")
    return found


ROUTES: tuple[WebRoute, ...] = (
    WebRoute(
        "GET",
        "/",
        "read",
        overview,
        "Overview",
        query=OverviewQuery,
        is_page=True,
        applies=EVERY_NARROWING,
    ),
)
