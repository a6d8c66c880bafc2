"""Workers: which work, are full, or are lost, and where their jobs went; and commands to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from markupsafe import Markup
from starlette.responses import Response

from winch.core.errors import ConfigError
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.core.values.bounds import parse_int
from winch.core.values.redact import mask_text
from winch.core.values.size import format_size
from winch.engine.client.audit import acting
from winch.engine.client.worker_commands import WorkerAnswer
from winch.engine.observe.usage import ProcessUsage
from winch.storage.params import JobFilter, SessionInfo
from winch.web import search
from winch.web.api.queues import visible_sessions
from winch.web.draw.pieces import Tile
from winch.web.draw.sparks import line
from winch.web.pages.base import go, link, one, page, part
from winch.web.pages.health import growth_words
from winch.web.pages.show import percent, size, span
from winch.web.pages.sure import ask, is_sure
from winch.web.problems import Problem
from winch.web.routes import WebCall, WebRoute
from winch.web.schemas.convert import job_out

MOST_RUNNING = 500
SHOWN_JOBS = 8
LOST_FOR = timedelta(hours=24)
# Among so many of the newest jobs those of lost workers are looked for.
LOOKED_AT = 500
MOST_ENDED = 25
# How long a request waits for the answer of a worker: a heartbeat comes every few seconds.
WAIT = "8s"
COMMANDS = ("quiet", "resume", "stop", "drain", "stacks", "configure")


class WorkersQuery(msgspec.Struct, frozen=True, kw_only=True):
    queue: str = ""
    open: str = ""
    did: str = ""


async def list_page(call: WebCall) -> Response:
    query: WorkersQuery = call.query
    mine = await visible_sessions(call, is_ended_too=True)
    usage = {} if call.access.is_narrow else await call.site.usage()
    now = datetime.now(UTC)
    live = [s for s in mine if s.ended_at is None]
    queues = sorted({queue for session in live for queue in session.queues})
    shown = [s for s in live if not query.queue or query.queue in s.queues]
    running = await _running(call)
    lost = [s for s in mine if _is_lost(s, now)]
    return await page(
        call,
        "workers.html",
        title="Workers",
        start_worker=call.site.app.start_worker,
        rows=[
            row(session, usage.get(session.id), running.get(session.id, []), now) for session in shown
        ],
        has_labels=any(one_.labels for one_ in shown),
        tiles=_tiles(shown, lost, usage),
        is_full=bool(shown) and all(s.running >= s.slots for s in shown),
        lost=await _what_became(call, lost),
        ended=[s for s in mine if s.ended_at is not None and s not in lost][:MOST_ENDED],
        queues=queues,
        chosen=query.queue,
        opened=query.open,
        sentence=_sentence(shown, lost),
    )


def _is_lost(session: SessionInfo, now: datetime) -> bool:
    """Whether its lease ran out: it did not say goodbye."""
    if session.ended_at is None:
        return session.lease_until < now
    reason = session.end_reason or ""
    return "lease" in reason and now - session.ended_at < LOST_FOR


def row(
    session: SessionInfo, usage: ProcessUsage | None, jobs: Sequence[JobRecord], now: datetime
) -> dict[str, Any]:
    """One worker as the list shows it."""
    share = None if usage is None or not usage.max_memory else usage.memory / usage.max_memory
    if session.lease_until < now:
        look, word = "lost", "Lost"
    elif usage is not None and usage.is_quiet:
        look, word = "paused", "Quiet"
    elif session.slots and session.running >= session.slots:
        look, word = "running", "Full"
    else:
        look, word = "running", "Working"
    return {
        "session": session,
        "look": look,
        "word": word,
        "is_quiet": word == "Quiet",
        "takes_commands": bool(session.supervisor) and look != "lost",
        "cpu": None if usage is None else f"{usage.cpu * 100:.0f} %",
        "is_hot": usage is not None and usage.cpu > 0.9,
        "spark": "" if usage is None else line(usage.history, "CPU of the last ten minutes"),
        "memory": None if usage is None else size(format_size(usage.memory)),
        "share": share,
        "max_memory": None if usage is None or not usage.max_memory else format_size(usage.max_memory),
        "is_heavy": share is not None and share > 0.8,
        "growth": "" if usage is None else growth_words(usage),
        "growth_short": "" if usage is None else _growth_short(usage),
        "memories": "" if usage is None else _memories(usage),
        "lag": None if usage is None else span(usage.lag),
        "is_slow": usage is not None and usage.lag > 0.1,
        "jobs": [_job_row(job, now) for job in jobs[:SHOWN_JOBS]],
        "more": max(0, len(jobs) - SHOWN_JOBS),
    }


def _growth_short(usage: ProcessUsage) -> str:
    growth = usage.growth
    if growth is None:
        return ""
    return f"+{size(format_size(growth.now - growth.start))} in {span(growth.seconds)}"


def _memories(usage: ProcessUsage) -> Markup | str:
    if len(usage.memories) < 2:
        return ""
    words = f"Memory from {usage.memories[0]:,} to {usage.memories[-1]:,} MiB"
    return line([float(one_) for one_ in usage.memories], words)


class _Options(msgspec.Struct):
    timeout: float | None = None


def _job_row(job: JobRecord, now: datetime) -> dict[str, Any]:
    took = now - (job.claimed_at or now)
    limit = _timeout(job.options)
    return {
        "job": job_out(job),
        "took": took,
        "timeout": limit,
        "share": 0.0 if not limit else min(took.total_seconds() / limit, 1.0),
    }


def _timeout(options: str | None) -> float | None:
    """The job's own timeout in seconds, where its options have one."""
    if options is None or '"timeout"' not in options:
        return None
    try:
        return msgspec.json.decode(options, type=_Options).timeout
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


async def _running(call: WebCall) -> dict[str, list[JobRecord]]:
    """The running jobs that the caller may see, by session, the longest first."""
    found = await call.site.search(
        call.access, search.Search(JobFilter(states=(JobState.RUNNING,))), limit=MOST_RUNNING
    )
    by_session: dict[str, list[JobRecord]] = {}
    for job in sorted(found.jobs, key=lambda job: job.claimed_at or datetime.now(UTC)):
        by_session.setdefault(job.session or "", []).append(job)
    return by_session


def _tiles(
    live: Sequence[SessionInfo], lost: Sequence[SessionInfo], usage: Mapping[str, ProcessUsage]
) -> list[Tile]:
    known = [usage[s.id] for s in live if s.id in usage]
    names = {s.id: s.worker for s in live}
    slots, busy = sum(s.slots for s in live), sum(s.running for s in live)
    releases = sorted({s.release for s in live if s.release and not s.release.startswith("http:")})
    gone = f"{len(lost):,} lost in 24 hours" if lost else "none lost"
    tiles = [
        Tile("Workers", f"{len(live):,}", "working", gone, "bad" if lost else ""),
        Tile("Busy slots", f"{busy:,}", f"/ {slots:,}", percent(100 * busy / slots) if slots else ""),
    ]  # fmt: skip
    if known:
        hottest = max((s for s in names if s in usage), key=lambda s: usage[s].cpu)
        slowest = max((s for s in names if s in usage), key=lambda s: usage[s].lag)
        allowed = [one.max_memory for one in known if one.max_memory]
        tiles += [
            Tile("CPU", f"{100 * sum(one.cpu for one in known) / len(known):.0f}", "%",
                 f"{names[hottest]} at {100 * usage[hottest].cpu:.0f} %",
                 "warn" if usage[hottest].cpu > 0.9 else ""),
            Tile("Memory", size(format_size(sum(one.memory for one in known))), "",
                 f"of {size(format_size(sum(allowed)))} allowed" if allowed else "no limit is set"),
            Tile("Loop lag, worst", span(usage[slowest].lag), "", names[slowest],
                 "warn" if usage[slowest].lag > 0.1 else ""),
        ]  # fmt: skip
    tiles.append(
        Tile("Releases", f"{len(releases)}", "", ", ".join(releases[:3]) or "no worker names one",
             "warn" if len(releases) > 1 else "")
    )  # fmt: skip
    return tiles


def _sentence(live: Sequence[SessionInfo], lost: Sequence[SessionInfo]) -> str:
    if not live:
        return "no worker is live"
    full = [s.worker for s in live if s.slots and s.running >= s.slots]
    parts = [f"{sum(s.running for s in live):,} of {sum(s.slots for s in live):,} slots busy"]
    if full:
        parts.append(f"{', '.join(full[:3])} full" if len(full) <= 3 else f"{len(full)} full")
    if lost:
        parts.append(f"{', '.join(sorted({s.worker for s in lost})[:3])} lost")
    return ", ".join(parts)


async def _what_became(call: WebCall, lost: Sequence[SessionInfo]) -> list[dict[str, Any]]:
    """Lost workers, and what became of the jobs they had: as far as the newest jobs tell."""
    if not lost:
        return []
    driver = call.site.driver
    page_ = await driver.arun(driver.list_jobs(JobFilter(limit=LOOKED_AT)))
    ids = {session.id: Counter[str]() for session in lost}
    for job in page_.jobs:
        if not call.access.sees(job):
            continue
        if job.session in ids and job.state is JobState.RUNNING:
            ids[job.session]["waits for its lease"] += 1
        for entry in job.history:
            if entry.session in ids and entry.what in ("rescued", "crashed"):
                word = "runs again" if job.state is JobState.RUNNING else str(job.state)
                ids[entry.session][word] += 1
    return [
        {"session": session, "jobs": ids[session.id].most_common(4), "count": ids[session.id].total()}
        for session in lost
    ]


async def detail_page(call: WebCall, answer: WorkerAnswer | None = None) -> Response:
    session = await _session(call)
    usage = {} if call.access.is_narrow else await call.site.usage()
    running = await _running(call)
    now = datetime.now(UTC)
    return await page(
        call,
        "worker.html",
        title=session.worker,
        session=session,
        row=row(session, usage.get(session.id), running.get(session.id, []), now),
        jobs=[_job_row(job, now) for job in running.get(session.id, [])],
        answer=None if answer is None else {"state": answer.state, "text": mask_text(answer.text)},
    )


async def _session(call: WebCall) -> SessionInfo:
    identity = call.path("id")
    for session in await visible_sessions(call, is_ended_too=True):
        if session.id == identity:
            return session
    raise Problem("not-found", f"no worker session {identity!r}")


async def act(call: WebCall) -> Response:
    """A command to one worker; its answer is shown when it comes within a few seconds."""
    session = await _session(call)
    action = one(call.body, "action") or ""
    if action not in COMMANDS:
        raise Problem("invalid", f"action must be one of {', '.join(COMMANDS)}")
    where = f"/workers/{part(session.id)}"
    if action in ("stop", "drain") and not is_sure(call):
        jobs = f"{session.running:,} {'job runs' if session.running == 1 else 'jobs run'} there now. "
        text = (
            f"{jobs}They get their grace period; then they go back to the queue, and another worker "
            "runs them."
            if action == "stop"
            else f"{jobs}They end first; nothing more is claimed, and then the worker ends."
        )
        return await ask(
            call, title=f"{action.capitalize()} {session.worker}?", text=text,
            verb=f"{action.capitalize()} {session.worker}", back=link(call.request, where),
        )  # fmt: skip
    workers, given = call.site.app.workers, call.body
    call.note(session.worker, action=action)
    try:
        with acting(call.by):
            match action:
                case "stop":
                    answers = await workers.astop(session.id, grace=one(given, "grace"), wait=WAIT)
                case "configure":
                    slots, queues = one(given, "concurrency"), one(given, "queues")
                    number = (
                        None if slots is None else parse_int(slots, "concurrency", least=1, most=1024)
                    )
                    call.note(session.worker, concurrency=number, queues=queues)
                    answers = await workers.aconfigure(
                        session.id, concurrency=number, queues=queues, wait=WAIT
                    )
                case _:
                    answers = await getattr(workers, f"a{action}")(session.id, wait=WAIT)
    except ConfigError as error:
        raise Problem("invalid", str(error)) from None
    call.site.forget()
    if action == "stacks":
        return await detail_page(call, answers[0])
    state = answers[0].state if answers else "pending"
    return go(call, where, did=f"worker-{'sent' if state == 'pending' else action}")


async def act_on_fleet(call: WebCall) -> Response:
    """Drain so many workers that run the fewest jobs."""
    number = parse_int(one(call.body, "idlest") or "", "idlest", least=1, most=1000)
    if not is_sure(call):
        return await ask(
            call,
            title=f"Drain the {number} idlest {'worker' if number == 1 else 'workers'}?",
            text="They claim nothing more, end when their last jobs have ended, and interrupt none.",
            verb=f"Drain {number} {'worker' if number == 1 else 'workers'}",
            back=link(call.request, "/workers"),
        )
    with acting(call.by):
        answers = await call.site.app.workers.adrain(idlest=number, wait=WAIT)
    names = sorted({name for answer in answers for name in answer.workers})
    call.note(", ".join(names) or "none", action="drain", idlest=number)
    return go(call, "/workers", did="worker-drain")


ROUTES: tuple[WebRoute, ...] = (
    WebRoute("GET", "/workers", "read", list_page, "Workers", query=WorkersQuery, is_page=True,
             applies=("queue",)),
    WebRoute("POST", "/workers", "operate", act_on_fleet, "Drain the idlest workers",
             audit="drain worker", is_page=True),
    WebRoute("GET", "/workers/{id}", "read", detail_page, "One worker", is_page=True,
             applies=("queue",)),
    WebRoute("POST", "/workers/{id}", "operate", act, "A command to a worker", audit="command worker",
             is_page=True),
)  # fmt: skip
