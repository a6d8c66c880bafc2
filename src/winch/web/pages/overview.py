"""The overview: what is wrong and what to do about it, how it goes now, and how it went."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from markupsafe import Markup
from starlette.responses import Response

from winch.core.lifecycle import JobState
from winch.engine.observe.alerts import kept_alerts
from winch.engine.observe.queue_counts import Count
from winch.engine.observe.queue_samples import QueueSample, Sample, busy_slots
from winch.engine.observe.throughput import HOUR, MINUTE, Series, TaskRate, percentile
from winch.storage.params import DeadGroup, GroupFilter, QueueInfo, SessionInfo
from winch.web.access import EVERY_NARROWING
from winch.web.draw.pieces import Tile
from winch.web.draw.sparks import line, trend
from winch.web.pages import figures
from winch.web.pages.base import link, page
from winch.web.pages.dead import trends_of
from winch.web.pages.health import LATE, health_of, objective, of_queue
from winch.web.pages.show import span
from winch.web.routes import WebCall, WebRoute
from winch.web.schemas.convert import group_out
from winch.web.schemas.queues import GroupOut
from winch.web.site import CACHE_SECONDS

MOST_QUEUES = 8
MOST_GROUPS = 5


class OverviewQuery(msgspec.Struct, frozen=True, kw_only=True):
    range: str = "1h"
    start: int = msgspec.field(default=0, name="from")
    end: int = msgspec.field(default=0, name="to")
    group: str = "outcome"
    findings: str = ""
    did: str = ""


async def overview(call: WebCall) -> Response:
    site, driver, query = call.site, call.site.driver, call.query
    if call.access.is_narrow:
        return await page(call, "narrow.html", title="Overview")
    now = int(time.time())
    moment = datetime.now(UTC)
    group = query.group if query.group in figures.GROUPS else "outcome"
    window = figures.window_of(query.range, query.start, query.end, now)
    # The store counts while the rates are read.
    series, counts, queues = await asyncio.gather(
        site.series(window.span, window.end, window.count), site.state_counts(), site.queues()
    )
    grouped = series
    if group == "worker":
        grouped = await site.series(window.span, window.end, window.count, by_worker=True)
    samples = await site.client.arun(figures.read_samples(driver, window))
    recent = await site.series(MINUTE, now, figures.RECENT)
    day = await site.series(HOUR, now, 24)
    sessions = await site.live_sessions()
    groups = await driver.arun(driver.groups(GroupFilter(limit=20)))
    alerts = await site.client.arun(kept_alerts(driver))
    rules = site.app.settings.alerts
    settings = await site.kept("queue settings", site.app.queues.asettings, CACHE_SECONDS)
    before = await figures.sample_before(site)
    failing = _within(groups, window)[:MOST_GROUPS]
    trends = await trends_of(call, failing)
    trimmed = window.trimmed(figures.first_time(window, series, samples)) if window.name else window
    shift = window.moments - trimmed.moments
    aim = None if rules.oldest is None else rules.oldest.total_seconds()
    total = series.total()

    def to(path: str, **more: Any) -> str:
        return link(call.request, path, **more)

    return await page(
        call,
        "overview.html",
        title="Overview",
        window=window,
        group=group,
        groupings=figures.GROUPS,
        ranges=tuple(figures.RANGES),
        keep={"group": group} if group != "outcome" else {},
        health=health_of(
            queues=queues,
            sessions=sessions,
            groups=groups,
            recent=recent,
            alerts=alerts,
            rules=rules,
            now=moment,
            link=to,
            usage=await site.usage(),
            settings=settings,
            before=before,
            command=site.app.command,
            shows_all=query.findings == "all",
        ),
        tiles=_tiles(recent, total, counts, queues, sessions, day, to),
        charts=[
            figures.throughput_chart(grouped, trimmed, group, now),
            figures.wait_chart(grouped, trimmed, group, aim),
            figures.ready_chart(samples, trimmed, shift),
            figures.slots_chart(samples, trimmed, shift),
        ],
        groups=[_group(one, trends.get(one.fingerprint, ())) for one in failing],
        slowest=_slowest(series),
        start_worker=site.app.start_worker,
        is_empty=not total.ended and not any(one.number for one in counts.values()),
        queues=_queues(
            queues,
            recent,
            samples,
            before,
            {one.name: objective(settings.get(one.name), rules) for one in queues},
            moment,
        ),
        queue_count=len(queues),
    )


def _tiles(
    recent: Series,
    over: TaskRate,
    counts: Mapping[JobState, Count],
    queues: Sequence[QueueInfo],
    sessions: Sequence[SessionInfo],
    day: Series,
    to: Any,
) -> list[Tile]:
    total = recent.total()
    now = datetime.now(UTC)
    oldest = min((q.oldest_ready_at for q in queues if q.oldest_ready_at), default=None)
    waits = None if oldest is None else now - oldest
    slots = sum(session.slots for session in sessions)
    busy = busy_slots(sessions)
    dead = counts[JobState.DEAD]
    lately = day.total().deaths
    run, wait = percentile(total.run, 0.95), percentile(total.wait, 0.95)
    share, usual = _share(total), _share(over)
    minutes = f"mean of {figures.RECENT} minutes"
    pace = total.ended / figures.recent_minutes()
    return [
        Tile("Processed", f"{pace:,.0f}", "/min", minutes, id="processed"),
        Tile("Failed attempts", "–" if share is None else f"{share:.1f}", "" if share is None else "%",
             minutes if share is None or usual is None else f"{usual:.1f} % over the range",
             "bad" if share is not None and share >= 10 else "",
             to("/jobs", q="state:retrying"), "failed"),
        Tile("Wait p95", *_parts(span(wait)), note=f"last {figures.RECENT} minutes", id="wait"),
        Tile("Run p95", *_parts(span(run)), note=f"last {figures.RECENT} minutes", id="run"),
        Tile("Ready", counts[JobState.READY].words(),
             note="none waits" if waits is None else f"oldest {span(waits)}",
             look="bad" if waits is not None and waits > LATE else "",
             href=to("/jobs", q="state:ready"), id="ready"),
        Tile("Busy slots", f"{busy:,}", f"/ {slots:,}",
             "1 worker" if len(sessions) == 1 else f"{len(sessions):,} workers",
             href=to("/workers"), id="slots"),
        Tile("Dead", dead.words(), note=f"{lately:,} died in 24 h" if lately else
             "kept until you act" if dead.number else "nothing is dead",
             look="bad" if lately else "", href=to("/dead"), id="dead"),
    ]  # fmt: skip


def _parts(text: str) -> tuple[str, str]:
    """A length of time as value and unit: the unit is small."""
    first, _, unit = text.rpartition(" ")
    return (first, unit) if first.replace(".", "").isdigit() else (text, "")


def _share(rate: TaskRate) -> float | None:
    return 100 * rate.broken / rate.ended if rate.ended else None


@dataclass(frozen=True)
class QueueRow:
    """A queue in the table of the overview."""

    queue: QueueInfo
    stored: float
    out: float
    picture: Markup
    wait: float | None
    aim: timedelta
    is_late: bool
    waited_long: bool
    drains: str
    sign: str
    weight: float


def _queues(
    queues: Sequence[QueueInfo],
    recent: Series,
    samples: dict[int, Sample],
    before: Sample | None,
    aims: Mapping[str, timedelta],
    now: datetime,
) -> list[QueueRow]:
    """The queues, the worst first: without a worker, late, growing, then by what waits."""
    rows = []
    for queue in queues:
        rate = recent.total(of_queue(queue.name))
        ready, late = queue.counts.get(JobState.READY, 0), aims[queue.name]
        depths = [
            samples[place].queues.get(queue.name, QueueSample(0, 0)).ready for place in sorted(samples)
        ]
        oldest = None if queue.oldest_ready_at is None else now - queue.oldest_ready_at
        wait = percentile(rate.wait, 0.95)
        is_late = oldest is not None and oldest > late and queue.paused_at is None
        grows = len(depths) > 8 and depths[-1] > 2 * max(sum(depths[-9:-4]) / 5, 10)
        out = rate.ended / figures.recent_minutes()
        stored = figures.arriving(rate, queue, before)
        drains = figures.drains_in(queue, out, stored)
        sign = {"paused": "paused", "no worker": "workers"}.get(drains, "")
        weight = 4.0 * (sign == "workers") + 3.0 * is_late + 2.0 * (drains == "growing")
        words = f"{ready:,} ready now, at most {max(depths, default=ready):,} in this range"
        rows.append(
            QueueRow(
                queue=queue,
                stored=stored,
                out=out,
                picture=line(
                    [float(one) for one in depths[-60:]], words, "dead" if grows or is_late else ""
                ),
                wait=wait,
                aim=late,
                is_late=is_late,
                waited_long=wait is not None and wait > late.total_seconds(),
                drains=drains,
                sign=sign,
                weight=weight + min(ready, 10_000_000) / 1e8,
            )
        )
    rows.sort(key=lambda row: (-row.weight, row.queue.name))
    return rows[:MOST_QUEUES]


def _within(groups: Sequence[DeadGroup], window: figures.Window) -> Sequence[DeadGroup]:
    """The groups of a page that is zoomed to a time: those whose deaths reach into it."""
    if window.name:
        return groups
    return [
        one for one in groups
        if one.first_at.timestamp() <= window.end and one.last_at.timestamp() >= window.start
    ]  # fmt: skip


def _group(group: DeadGroup, deaths: Sequence[int]) -> tuple[GroupOut, Markup]:
    """A group of dead jobs with its deaths by hour."""
    return group_out(group), trend(deaths, f"{sum(deaths):,} died in 24 hours")


def _slowest(series: Series) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "task": task,
            "ended": rate.ended,
            "failed": 100 * rate.broken / rate.ended if rate.ended else 0.0,
            "p50": percentile(rate.run, 0.5),
            "p95": percentile(rate.run, 0.95),
        }
        for task, rate in series.by_task().items()
    ]
    return sorted(found, key=lambda row: -(row["p95"] or 0))[:6]


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
