"""`winch top`: queues, running jobs and rates, live."""

from __future__ import annotations

import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import click

from winch.app import App
from winch.cli.operate.queues import queue_data, queue_table
from winch.cli.operate.workers import is_live
from winch.cli.shared import text
from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import Column, Table, emit_json, say
from winch.core.errors import StorageUnavailable
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.storage.params import JobFilter, QueueInfo, SessionInfo

EVERY = 1.0
CAP = 100_000
RUNNING_SHOWN = 100
COUNTED = (JobState.COMPLETED, JobState.DEAD)


@dataclass(frozen=True)
class Snapshot:
    """What there was at one moment."""

    at: float
    store: str
    counts: Mapping[JobState, int]
    queues: list[QueueInfo]
    sessions: list[SessionInfo]
    running: list[JobRecord]


@click.command()
@json_option
@store_options
def top(options: StoreOptions) -> None:
    """Watch queues, running jobs and rates; q quits.

    Refreshes every second. If the output is not a terminal, or with --json, it prints once and exits.
    """
    with opened(options) as app:
        if options.as_json:
            emit_json(_data(snapshot(app)))
        elif sys.stdin.isatty() and sys.stdout.isatty():
            _watch(app)
        else:
            for line in shown(snapshot(app), None, room=None):
                say(line)


def snapshot(app: App) -> Snapshot:
    driver = app.ready()
    page = driver.run(driver.list_jobs(JobFilter(states=(JobState.RUNNING,), limit=RUNNING_SHOWN)))
    return Snapshot(
        at=time.monotonic(),
        store=driver.describe(),
        counts=driver.run(driver.counts(cap=CAP)),
        queues=app.queues.list(),
        sessions=[session for session in app.workers.list() if is_live(session)],
        running=sorted(page.jobs, key=lambda job: (job.claimed_at or job.created_at, job.id)),
    )


def rates(now: Snapshot, before: Snapshot | None) -> dict[JobState, float | None]:
    """Jobs a second that became final since the last snapshot; None where it is not known."""
    found: dict[JobState, float | None] = {}
    for state in COUNTED:
        is_known = before is not None and now.counts[state] < CAP and now.at > before.at
        found[state] = (
            # Pruning makes the count smaller, and is no work undone.
            max(now.counts[state] - before.counts[state], 0) / (now.at - before.at)
            if before is not None and is_known
            else None
        )
    return found


def shown(now: Snapshot, before: Snapshot | None, *, room: int | None) -> list[str]:
    """The look as lines for a terminal this wide; None: as wide as it takes."""
    slots = sum(session.slots for session in now.sessions)
    busy = sum(session.running for session in now.sessions)
    workers = f"{text.count(len(now.sessions), 'worker process').replace('processs', 'processes')}"
    lines = [
        f"{text.bold(text.one_line(now.store))}   {workers}, {busy} of {text.count(slots, 'slot')} busy",
        "   ".join(
            _counted(state, now.counts[state], rate) for state, rate in rates(now, before).items()
        ),
        "",
    ]
    if now.queues:
        lines += [*queue_table(now.queues).lines(room), ""]
    if now.running:
        lines += _running_table(now).lines(room)
    else:
        lines.append(text.dim("no job is running"))
    return lines


def _counted(state: JobState, number: int, rate: float | None) -> str:
    total = f"{number:,}+" if number >= CAP else f"{number:,}"
    speed = "" if rate is None else f" ({rate:,.0f}/s)"
    return f"{text.state(state)} {total}{speed}"


def _running_table(now: Snapshot) -> Table:
    workers = {session.id: session.worker for session in now.sessions}
    table = Table(
        [
            Column("RUNNING"),
            Column("TASK", gives_way=True),
            Column("QUEUE", gives_way=True),
            Column("ATTEMPT", is_right=True, drop=1),
            Column("FOR", is_right=True),
            Column("WORKER", gives_way=True),
        ]
    )
    at = text.now()
    for job in now.running:
        table.add(
            job.id,
            text.one_line(job.task),
            text.one_line(job.queue),
            str(job.attempt),
            text.span(at - job.claimed_at) if job.claimed_at else "",
            text.one_line(workers.get(job.session or "", "gone")),
        )
    return table


def _watch(app: App) -> None:
    before: Snapshot | None = None
    with _own_screen():
        while True:
            size = shutil.get_terminal_size()
            try:
                now = snapshot(app)
            except StorageUnavailable as error:  # it may come back while the screen is open
                lines = [text.one_line(str(error))]
            else:
                lines = shown(now, before, room=size.columns)
                before = now
            body = "\r\n".join(f"{line}\x1b[K" for line in lines[: size.lines - 1])
            click.echo(f"\x1b[H{body}\r\n\x1b[J{text.dim('q quits')}", nl=False)
            if _is_quit(EVERY):
                return


def _is_quit(seconds: float) -> bool:
    """Wait for a key; whether it was q (or the end of the input)."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        readable, _, _ = select.select([sys.stdin], [], [], left)
        if readable and sys.stdin.read(1) in ("q", "Q", "\x03", "\x04", ""):
            return True
    return False


@contextmanager
def _own_screen() -> Iterator[None]:
    """The terminal's second screen, keys without Return; all as it was afterwards."""
    before = termios.tcgetattr(sys.stdin)
    click.echo("\x1b[?1049h\x1b[?25l", nl=False)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        click.echo("\x1b[?25h\x1b[?1049l", nl=False)


def _data(now: Snapshot) -> dict[str, object]:
    workers = {session.id: session.worker for session in now.sessions}
    at = text.now()
    return {
        "store": now.store,
        "jobs": {str(state): number for state, number in now.counts.items()},
        "jobs_capped_at": CAP,
        "queues": [queue_data(queue) for queue in now.queues],
        "workers": {
            "live": len(now.sessions),
            "slots": sum(session.slots for session in now.sessions),
            "running": sum(session.running for session in now.sessions),
        },
        "running": [
            {
                "id": job.id,
                "task": job.task,
                "queue": job.queue,
                "attempt": job.attempt,
                "claimed_at": job.claimed_at,
                "elapsed_seconds": (at - job.claimed_at).total_seconds() if job.claimed_at else None,
                "worker": workers.get(job.session or ""),
            }
            for job in now.running
        ],
    }
