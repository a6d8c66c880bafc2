"""Numbers for Prometheus, from the store's own counts: the same whichever server is asked."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from winch.core.lifecycle import JobState
from winch.engine.client.backlog import by_label
from winch.engine.observe.prometheus import MOST_LABELS, build_info, family, missed_windows
from winch.engine.observe.store_numbers import oldest_snapshot
from winch.engine.tasks.schedules import Schedule

if TYPE_CHECKING:
    from winch.storage.gate_records import LimitInfo
    from winch.storage.params import QueueInfo
    from winch.web.site import Site


async def render(site: Site, now: datetime) -> str:
    queues = (await site.queues())[:MOST_LABELS]
    sessions = await site.live_sessions()
    driver = site.driver
    busy = sum(session.running for session in sessions)
    slots = sum(session.slots for session in sessions)
    lines = _of_queues(queues, now)
    needed = await site.client.arun(by_label(driver, queues))
    lines += family(
        "winch_queue_backlog",
        "gauge",
        "Jobs that run or could run now, by queue and the label that they need.",
        (
            ({"queue": queue, "label": label}, number)
            for (queue, label), number in sorted(needed.items())[:MOST_LABELS]
        ),
    )
    lines += family("winch_workers", "gauge", "Worker sessions.", [({"state": "live"}, len(sessions))])
    lines += family(
        "winch_worker_slots",
        "gauge",
        "Slots of all live workers.",
        [({"state": "busy"}, busy), ({"state": "free"}, max(slots - busy, 0))],
    )
    lines += _of_schedules((await site.app.schedules.alist())[:MOST_LABELS])
    lines += _of_limits((await driver.arun(driver.limits()))[:MOST_LABELS])
    lines += await _of_letters(site)
    lines += build_info(driver.name)
    await site.client.arun(site.fleet.look(driver, int(now.timestamp())))
    site.fleet.counters.take(site.stored)
    lines += site.fleet.counters.render()
    lines += missed_windows(site.app.runtime.missed)
    lines += site.timings.render()
    return "\n".join(lines) + "\n"


async def _of_letters(site: Site) -> list[str]:
    dead = await site.dead_letters()
    lines = family(
        "winch_dead_jobs",
        "gauge",
        "Dead jobs that the store keeps.",
        (({"task": task}, number) for task, number in sorted(dead.items())[:MOST_LABELS]),
    )
    age = await site.client.arun(oldest_snapshot(site.driver))
    if age is not None:
        lines += family(
            "winch_oldest_snapshot_age_seconds",
            "gauge",
            "Age of the oldest transaction that keeps vacuum from removing dead rows; 0 when none does.",
            [({}, round(age.total_seconds(), 3))],
        )
    return lines


def _of_queues(queues: list[QueueInfo], now: datetime) -> list[str]:
    lines = family(
        "winch_queue_jobs",
        "gauge",
        "Live jobs by queue and state.",
        (
            ({"queue": queue.name, "state": str(state)}, queue.counts.get(state, 0))
            for queue in queues
            for state in JobState
            if not state.is_final
        ),
    )
    lines += family(
        "winch_queue_oldest_job_age_seconds",
        "gauge",
        "How long the oldest ready job has waited; 0 when none waits.",
        (
            (
                {"queue": queue.name},
                0.0
                if queue.oldest_ready_at is None
                else round(max((now - queue.oldest_ready_at).total_seconds(), 0.0), 3),
            )
            for queue in queues
        ),
    )
    lines += family(
        "winch_queue_paused",
        "gauge",
        "1 where the queue is paused.",
        (({"queue": queue.name}, float(queue.paused_at is not None)) for queue in queues),
    )
    return lines


def _of_schedules(schedules: list[Schedule]) -> list[str]:
    lines = family(
        "winch_schedule_last_run_timestamp_seconds",
        "gauge",
        "The last window for which a job was enqueued.",
        (
            ({"schedule": one.name}, one.last_window.timestamp())
            for one in schedules
            if one.last_window is not None
        ),
    )
    lines += family(
        "winch_schedule_lag_seconds",
        "gauge",
        "How long a window has been due without its job; 0 when none is.",
        (
            ({"schedule": one.name}, 0.0 if one.late_by is None else one.late_by.total_seconds())
            for one in schedules
        ),
    )
    return lines


def _of_limits(limits: list[LimitInfo]) -> list[str]:
    return family(
        "winch_limit_tokens",
        "gauge",
        "What a limit or rate still lets through.",
        (({"limit": one.name}, max(one.spec.n - one.used, 0)) for one in limits if one.spec is not None),
    )
