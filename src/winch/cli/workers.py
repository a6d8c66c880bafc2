"""`winch workers`: who is running jobs."""

from __future__ import annotations

import click

from winch.cli import NO_WORKER, text
from winch.cli.output import Column, Table, emit_json, remark
from winch.cli.store import Said, json_option, opened, store_options
from winch.storage.params import SessionInfo


@click.group()
def workers() -> None:
    """Look at the workers."""


@workers.command("list")
@click.option("--all", "is_all", is_flag=True, help="Those that ended lately, too.")
@json_option
@store_options
def list_(said: Said, is_all: bool) -> None:
    """List the live worker processes; exit 69 when there is none."""
    with opened(said) as app:
        found = app.workers.list(is_ended_too=is_all)
    at = text.now()
    live = [session for session in found if is_live(session)]
    if said.as_json:
        emit_json({"workers": [_data(session) for session in found]})
    elif found:
        table = Table(
            [
                Column("WORKER", gives_way=True),
                Column("PID", is_right=True),
                Column("BUSY", is_right=True),
                Column("QUEUES", gives_way=True),
                Column("TASKS", is_right=True, drop=1),
                Column("RELEASE", drop=2),
                Column("STARTED"),
                Column("LEASE"),
            ]
        )
        for session in found:
            table.add(
                text.one_line(session.worker),
                str(session.pid),
                f"{session.running}/{session.slots}",
                text.one_line(", ".join(session.queues)),
                str(len(session.tasks)),
                text.one_line(session.release),
                text.ago(session.started_at, at),
                _lease(session),
            )
        table.show()
    if not live:
        remark("winch: no live worker; start one: winch worker -A module:app")
        click.get_current_context().exit(NO_WORKER)


def is_live(session: SessionInfo) -> bool:
    """Not ended, and its lease not over: one that was killed counts as live until then."""
    return session.ended_at is None and session.lease_until > text.now()


def _lease(session: SessionInfo) -> str:
    at = text.now()
    if session.ended_at is not None:
        why = f" ({text.one_line(session.end_reason)})" if session.end_reason else ""
        return f"ended {text.ago(session.ended_at, at)}{why}"
    if session.lease_until <= at:
        return f"over since {text.span(at - session.lease_until)}"
    return f"{text.span(session.lease_until - at)} left"


def _data(session: SessionInfo) -> dict[str, object]:
    return {
        "session": session.id,
        "worker": session.worker,
        "host": session.host,
        "pid": session.pid,
        "release": session.release,
        "queues": list(session.queues),
        "tasks": list(session.tasks),
        "slots": session.slots,
        "running": session.running,
        "is_live": is_live(session),
        "started_at": session.started_at,
        "lease_until": session.lease_until,
        "ended_at": session.ended_at,
        "end_reason": session.end_reason,
    }
