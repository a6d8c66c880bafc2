"""Numbers for Prometheus, from the store's own counts: the same whichever server is asked."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

from winch.core.lifecycle import JobState

if TYPE_CHECKING:
    from winch.web.site import Site

Sample = tuple[dict[str, str], float]
# Names are bounded by what people deploy, but nothing stops a program from inventing queues.
MOST_LABELS = 500


def family(name: str, kind: str, help_: str, samples: Iterable[Sample]) -> list[str]:
    """One metric family in the text format."""
    lines = [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inner = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
        shown = repr(float(value)) if value != int(value) else str(int(value))
        lines.append(f"{name}{{{inner}}} {shown}" if inner else f"{name} {shown}")
    return lines


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


async def render(site: Site, now: datetime) -> str:
    queues = (await site.queues())[:MOST_LABELS]
    sessions = await site.live_sessions()
    busy = sum(session.running for session in sessions)
    slots = sum(session.slots for session in sessions)
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
    lines += family("winch_workers", "gauge", "Worker sessions.", [({"state": "live"}, len(sessions))])
    lines += family(
        "winch_worker_slots",
        "gauge",
        "Slots of all live workers.",
        [({"state": "busy"}, busy), ({"state": "free"}, max(slots - busy, 0))],
    )
    lines += family(
        "winch_build_info",
        "gauge",
        "Release and store.",
        [({"version": version("winch"), "backend": site.driver.name}, 1)],
    )
    return "\n".join(lines) + "\n"
