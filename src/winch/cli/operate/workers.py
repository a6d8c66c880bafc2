"""`winch workers`: the workers, and signals to them."""

from __future__ import annotations

import signal
import socket
from typing import Any

import click

from winch.cli import NO_WORKER
from winch.cli.operate.processes import send, supervisor_of
from winch.cli.shared import text
from winch.cli.shared.audit import noted
from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import Column, Table, complain, emit_json, remark, say
from winch.core.errors import ConfigError, did_you_mean
from winch.storage.params import SessionInfo


@click.group()
def workers() -> None:
    """Look at the workers and signal them."""


@workers.command("list")
@click.option("--all", "is_all", is_flag=True, help="Include workers that ended recently.")
@json_option
@store_options
def list_(options: StoreOptions, is_all: bool) -> None:
    """List the live worker processes; exit 69 when there is none."""
    with opened(options) as app:
        found = app.workers.list(is_ended_too=is_all)
    at = text.now()
    live = [session for session in found if is_live(session)]
    if options.as_json:
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


def acting(command: Any) -> Any:
    """The argument and options of the commands that signal workers."""
    for option in reversed(
        (
            click.argument("names", nargs=-1, metavar="NAME..."),
            click.option("--all", "is_all", is_flag=True, help="Every worker of this machine."),
            json_option,
            store_options,
        )
    ):
        command = option(command)
    return command


@workers.command()
@click.option("--off", "is_off", is_flag=True, help="Claim again.")
@acting
def quiet(options: StoreOptions, names: tuple[str, ...], is_all: bool, is_off: bool) -> None:
    """Stop workers from claiming; running jobs continue.

    Acts on the whole `winch worker` of each named process, on this machine only. Exits with 69 if it
    reached none.
    """
    number, done = (signal.SIGCONT, "claims again") if is_off else (signal.SIGUSR1, "quiet")
    _signal(options, names, is_all, number, done, "resume worker" if is_off else "quiet worker")


@workers.command()
@acting
def stop(options: StoreOptions, names: tuple[str, ...], is_all: bool) -> None:
    """Stop workers: no new jobs; running jobs get their grace period.

    Acts on the whole `winch worker` of each named process, on this machine only. Exits with 69 if it
    reached none.
    """
    _signal(options, names, is_all, signal.SIGTERM, "asked to stop", "stop worker")


@workers.command()
@acting
def stacks(options: StoreOptions, names: tuple[str, ...], is_all: bool) -> None:
    """Make workers write their stacks and running jobs to the log.

    Acts on the whole `winch worker` of each named process, on this machine only. Exits with 69 if it
    reached none.
    """
    _signal(options, names, is_all, signal.SIGUSR2, "writes its stacks to its log", "worker stacks")


def _signal(
    options: StoreOptions,
    names: tuple[str, ...],
    is_all: bool,
    number: signal.Signals,
    done: str,
    action: str,
) -> None:
    if bool(names) == is_all:
        raise click.UsageError("name the workers (winch workers list), or say --all")
    reached: dict[int, list[str]] = {}
    errors: list[str] = []
    # Opened once: an app that is opened again cannot be configured any more.
    with opened(options) as app:
        live = {session.worker: session for session in app.workers.list() if is_live(session)}
        if is_all:
            here = socket.gethostname()
            names = tuple(name for name, session in live.items() if session.host == here)
        for name in names:
            try:
                if name not in live:
                    raise ConfigError(f"no live worker named {name!r}{did_you_mean(name, live)}")
                pid = supervisor_of(live[name])
                if pid not in reached:  # several processes named, one worker
                    send(pid, number)
            except ConfigError as error:
                errors.append(str(error))
            else:
                reached.setdefault(pid, []).append(name)
        for pid, named in reached.items():
            noted(app, action, ", ".join(named), pid=pid)
    if options.as_json:
        emit_json(
            {
                "workers": [
                    {"pid": pid, "named": named, "done": done} for pid, named in reached.items()
                ],
                "errors": errors,
            }
        )
    for pid, named in () if options.as_json else reached.items():
        say(f"{text.one_line(', '.join(named))}  {done} (process {pid})")
    for problem in errors:
        complain(problem)
    if not reached and is_all:
        remark("winch: no live worker on this machine")
    if not reached or errors:
        click.get_current_context().exit(1 if reached else NO_WORKER)


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
