"""`winch workers`: the workers, and commands to them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click
import msgspec

from winch.app import App
from winch.cli import NO_WORKER
from winch.cli.shared import text
from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import Column, Table, complain, emit_json, remark, say
from winch.core.errors import ConfigError, did_you_mean
from winch.core.values.duration import parse_duration
from winch.engine.client.quiet import quiet_sessions
from winch.engine.client.worker_commands import WorkerAnswer
from winch.storage.params import SessionInfo

# How often a drain looks whether its workers have ended.
ENDS_EVERY = 0.5


@click.group()
def workers() -> None:
    """List workers and send them commands."""


@workers.command("list")
@click.option("--all", "is_all", is_flag=True, help="Include workers that ended recently.")
@json_option
@store_options
def list_(options: StoreOptions, is_all: bool) -> None:
    """List the live worker processes; exit 69 when there is none."""
    with opened(options) as app:
        found = app.workers.list(is_ended_too=is_all)
        quiet = app.client.run(quiet_sessions(app.ready()))
        start = app.start_worker
    at = text.now()
    live = [session for session in found if is_live(session)]
    if options.as_json:
        emit_json({"workers": [_data(session, session.id in quiet) for session in found]})
    elif found:
        table = Table(
            [
                Column("WORKER", gives_way=True),
                Column("PID", is_right=True),
                Column("BUSY", is_right=True),
                Column("QUEUES", gives_way=True),
                Column("TASKS", is_right=True, drop=1),
                Column("LABELS", gives_way=True, drop=3),
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
                text.one_line(" ".join(f"{name}={value}" for name, value in session.labels.items())),
                text.one_line(session.release),
                text.ago(session.started_at, at),
                _lease(session, session.id in quiet),
            )
        table.show()
    if not live:
        remark(f"winch: no live worker; start one: {start}")
        click.get_current_context().exit(NO_WORKER)


def chosen(command: Any) -> Any:
    """The argument and options of the commands that are sent to workers."""
    for option in reversed(
        (
            click.argument("names", nargs=-1, metavar="[NAME...]"),
            click.option("--all", "is_all", is_flag=True, help="Every live worker."),
            click.option("--here", "is_here", is_flag=True, help="Every worker of this machine."),
            click.option(
                "--wait", default="15s", show_default=True, help="How long to wait for answers."
            ),
            json_option,
            store_options,
        )
    ):
        command = option(command)
    return command


@workers.command()
@click.option("--off", "is_off", is_flag=True, help="Claim again, like `resume`.")
@chosen
def quiet(options: StoreOptions, is_off: bool, **which: Any) -> None:
    """Stop workers from claiming; running jobs continue.

    Acts on the whole `winch worker` of each named process, on any machine, with its next heartbeat.
    Exits with 69 if it reached none.
    """
    if is_off:
        _send(options, which, lambda area, names, **to: area.resume(*names, **to))
    else:
        _send(options, which, lambda area, names, **to: area.quiet(*names, **to))


@workers.command()
@chosen
def resume(options: StoreOptions, **which: Any) -> None:
    """Let quiet workers claim again."""
    _send(options, which, lambda area, names, **to: area.resume(*names, **to))


@workers.command()
@click.option("--grace", help="How long running jobs may continue, like 30s.")
@chosen
def stop(options: StoreOptions, grace: str | None, **which: Any) -> None:
    """Stop workers: no new jobs; running jobs get their grace period.

    Acts on the whole `winch worker` of each named process, on any machine, with its next heartbeat.
    Exits with 69 if it reached none.
    """
    _send(options, which, lambda area, names, **to: area.stop(*names, grace=grace, **to), ends=True)


@workers.command()
@click.option("--idlest", type=click.IntRange(1), help="So many workers that run the fewest jobs.")
@click.option("--until-ended", help="Wait until they have ended, for so long at most, like 1h.")
@chosen
def drain(options: StoreOptions, idlest: int | None, until_ended: str | None, **which: Any) -> None:
    """Stop workers when their running jobs have ended, however long these take.

    Acts on the whole `winch worker` of each named process. No job is interrupted. Exits with 69 if it
    reached no worker, and with 1 if one still runs after --until-ended.
    """
    longest = None if until_ended is None else parse_duration(until_ended, "--until-ended")
    _send(
        options,
        which,
        lambda area, names, **to: area.drain(*names, idlest=idlest, **to),
        ends=True,
        needs_names=idlest is None,
        until_ended=longest,
    )


@workers.command()
@chosen
def stacks(options: StoreOptions, **which: Any) -> None:
    """Print the stacks and running jobs of worker processes.

    Reads each named process, on any machine, with its next heartbeat. Exits with 69 if it reached none.
    """
    _send(options, which, lambda area, names, **to: area.stacks(*names, **to))


@workers.command()
@click.option("-c", "--concurrency", type=int, help="Jobs that each process runs at the same time.")
@click.option("-Q", "--queues", help="Queues in strict order, by weight, or all, as of `winch worker`.")
@click.option("--queue-limits", help="As of `winch worker`; replaces those of all queues, '' removes.")
@click.option("--queue-rates", help="As of `winch worker`; replaces those of all queues, '' removes.")
@chosen
def configure(
    options: StoreOptions,
    concurrency: int | None,
    queues: str | None,
    queue_limits: str | None,
    queue_rates: str | None,
    **which: Any,
) -> None:
    """Change the concurrency, the queues or their bounds of workers while they run.

    New processes with these settings replace the old ones, where running jobs end. The settings last
    until the `winch worker` ends.
    """
    _send(
        options,
        which,
        lambda area, names, **to: area.configure(
            *names,
            concurrency=concurrency,
            queues=queues,
            queue_limits=queue_limits,
            queue_rates=queue_rates,
            **to,
        ),
    )


def _send(
    options: StoreOptions,
    which: dict[str, Any],
    command: Callable[..., list[WorkerAnswer]],
    *,
    ends: bool = False,
    needs_names: bool = True,
    until_ended: timedelta | None = None,
) -> None:
    """Send a command and print the answers. `ends`: the end of the worker is what was wanted."""
    names: tuple[str, ...] = which["names"]
    is_all, is_here = which["is_all"], which["is_here"]
    if (bool(names) + is_all + is_here) != needs_names:
        hint = "name the workers (winch workers list), or pass --all or --here"
        raise click.UsageError(hint if needs_names else "--idlest chooses the workers by itself")
    errors: list[str] = []
    answers: list[WorkerAnswer] = []
    is_mistake = False
    with opened(options) as app:
        live = [session for session in app.workers.list() if is_live(session)]
        if is_all or is_here:
            here = socket.gethostname()
            reached = [one for one in live if one.supervisor and (is_all or one.host == here)]
            names = tuple(one.id for one in reached)
        known = {name for session in live for name in (session.worker, session.id)}
        unknown = [name for name in names if name not in known]
        errors += [f"no live worker named {name!r}{did_you_mean(name, known)}" for name in unknown]
        names = tuple(name for name in names if name in known)
        try:
            if names or not needs_names:
                answers = command(app.workers, names, wait=which["wait"])
        except ConfigError as error:
            errors.append(str(error))
            # Of the value, where such a worker takes commands.
            is_mistake = any(one.supervisor and {one.worker, one.id} & {*names} for one in live)
        left = _await_ends(app, answers, until_ended)
    if options.as_json:
        emit_json({"answers": [msgspec.to_builtins(one) for one in answers], "errors": errors})
    for one in answers:
        if not options.as_json:
            say(f"{text.one_line(', '.join(one.workers))}  {_shown(one)}")
    for problem in errors:
        complain(problem)
    if not answers and not errors:
        remark("winch: no live worker" + (" on this machine" if is_here else ""))
    good = {"done", "ended"} if ends else {"done"}
    if not answers:
        click.get_current_context().exit(2 if is_mistake else NO_WORKER)
    if errors or left or any(one.state not in good for one in answers):
        click.get_current_context().exit(1)


def _shown(answer: WorkerAnswer) -> str:
    if answer.state == "pending":
        return "no answer yet; the command stays in force for 10 minutes"
    if answer.state == "ended":
        return "has ended"
    kept = "\n".join(text.one_line(line) for line in answer.text.splitlines())
    return f"failed: {kept}" if answer.state == "failed" else kept


def _await_ends(app: App, answers: list[WorkerAnswer], longest: timedelta | None) -> set[str]:
    """Wait until these workers have ended; returns those that have not."""
    names = {name for answer in answers for name in answer.workers}
    if longest is None:
        return set()
    until = time.monotonic() + longest.total_seconds()
    while True:
        left = names & {session.worker for session in app.workers.list() if is_live(session)}
        if not left or time.monotonic() >= until:
            return left
        time.sleep(min(ENDS_EVERY, max(until - time.monotonic(), 0.0)))


def is_live(session: SessionInfo) -> bool:
    """Not ended, and its lease not over: one that was killed counts as live until then."""
    return session.ended_at is None and session.lease_until > text.now()


def _lease(session: SessionInfo, is_quiet: bool) -> str:
    at = text.now()
    if session.ended_at is not None:
        why = f" ({text.one_line(session.end_reason)})" if session.end_reason else ""
        return f"ended {text.ago(session.ended_at, at)}{why}"
    if session.lease_until <= at:
        return f"over since {text.span(at - session.lease_until)}"
    return f"{text.span(session.lease_until - at)} left{', quiet' if is_quiet else ''}"


def _data(session: SessionInfo, is_quiet: bool) -> dict[str, object]:
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
        "labels": session.labels,
        "queue_limits": msgspec.to_builtins(session.queue_limits),
        "is_live": is_live(session),
        "is_quiet": is_quiet,
        "started_at": session.started_at,
        "lease_until": session.lease_until,
        "ended_at": session.ended_at,
        "end_reason": session.end_reason,
    }
