"""`winch queues`: look at queues, pause, resume, set and purge them."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from winch.cli.shared import text
from winch.cli.shared.known import check_known_queue, create_option
from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import Column, Table, emit_json, remark, report_each, say
from winch.cli.shared.question import dry_run_option, may_go_on, yes_option
from winch.core.lifecycle import JobState
from winch.core.policy.retry import StoredRetry, backoff_text
from winch.core.values.bounds import is_int
from winch.storage.params import QueueInfo

SHOWN = (
    JobState.READY,
    JobState.RUNNING,
    JobState.SCHEDULED,
    JobState.RETRYING,
    JobState.BLOCKED,
)


@click.group()
def queues() -> None:
    """Look at queues, pause, resume and purge them."""


@queues.command("list")
@json_option
@store_options
def list_(options: StoreOptions) -> None:
    """List the queues with their live jobs."""
    with opened(options) as app:
        found = app.queues.list()
    if options.as_json:
        emit_json({"queues": [queue_data(queue) for queue in found]})
    elif found:
        queue_table(found).show()
    else:
        remark("no queues: no live job and no worker")


def queue_table(found: list[QueueInfo]) -> Table:
    table = Table(
        [
            Column("QUEUE", gives_way=True),
            *(
                Column(str(state).upper(), is_right=True, drop=1 if state is JobState.BLOCKED else 0)
                for state in SHOWN
            ),
            Column("OLDEST READY", drop=2),
            Column("WORKERS", is_right=True),
            Column("NOTE", gives_way=True),
        ]
    )
    at = text.now()
    for queue in found:
        table.add(
            text.one_line(queue.name),
            *(_number(queue.counts.get(state, 0)) for state in SHOWN),
            f"waits {text.span(at - queue.oldest_ready_at)}" if queue.oldest_ready_at else "",
            _number(queue.sessions),
            _note(queue),
        )
    return table


def _number(value: int) -> str:
    return f"{value:,}" if value else text.dim("-")


def _note(queue: QueueInfo) -> str:
    if queue.paused_at is not None:
        why = f": {text.one_line(queue.pause_reason)}" if queue.pause_reason else ""
        return f"paused {text.ago(queue.paused_at, text.now())}{why}"
    if not queue.sessions and queue.counts.get(JobState.READY):
        return "no worker serves it"
    return " "


def queue_data(queue: QueueInfo) -> dict[str, object]:
    return {
        "name": queue.name,
        "is_paused": queue.paused_at is not None,
        "paused_at": queue.paused_at,
        "pause_reason": queue.pause_reason,
        "counts": {str(state): queue.counts.get(state, 0) for state in SHOWN},
        "oldest_ready_at": queue.oldest_ready_at,
        "workers": queue.sessions,
    }


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--reason", help="Shown by `winch why` and the dashboard.")
@click.option(
    "--until", metavar="DURATION", help="Resume after this time, like 2h; needs a live worker."
)
@create_option
@json_option
@store_options
def pause(
    options: StoreOptions, names: tuple[str, ...], reason: str | None, until: str | None, create: bool
) -> None:
    """Stop claiming from these queues; running jobs continue."""
    with opened(options) as app:
        for name in names:
            if not create:
                check_known_queue(app, name, advice=". Add --create to pause it before its first job")
        for name in names:
            app.queues.pause(name, reason=reason, until=until)
    report_each("queues", names, "paused", as_json=options.as_json)


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@store_options
def resume(options: StoreOptions, names: tuple[str, ...]) -> None:
    """Let workers claim from these queues again."""
    with opened(options) as app:
        for name in names:
            app.queues.resume(name)
    report_each("queues", names, "resumed", as_json=options.as_json)


@queues.command("set")
@click.argument("name")
@click.argument("settings", nargs=-1, metavar="KEY=VALUE...")
@json_option
@store_options
def set_(options: StoreOptions, name: str, settings: tuple[str, ...]) -> None:
    """Set concurrency, retries, backoff, max_depth, max_age, on_full, block_for or drain of a queue.

    KEY= without a value resets a setting. Without KEY=VALUE the command shows the settings. Changes take
    effect in every process within two seconds.
    """
    given: dict[str, Any] = {}
    for one in settings:
        key, equals, value = one.partition("=")
        if not equals:
            raise click.UsageError(f"expected KEY=VALUE, got {one!r}")
        given[key] = None if not value else int(value) if is_int(value) else value
    with opened(options) as app:
        after = app.queues.configure(name, **given)
    shown = msgspec.to_builtins(after)
    if isinstance(after.backoff, StoredRetry):
        shown["backoff"] = backoff_text(after.backoff)
    if options.as_json:
        emit_json({"name": name, "settings": shown})
    elif shown:
        for key, value in shown.items():
            say(f"{key}={value}")
    else:
        remark(f"nothing is set for queue {text.one_line(name)}")


@queues.command()
@click.argument("name")
@yes_option
@dry_run_option
@json_option
@store_options
def purge(options: StoreOptions, name: str, yes: bool, dry_run: bool) -> None:
    """Remove the waiting jobs of a queue; running jobs continue.

    Cancels jobs that a flow, a batch or another job waits for, and deletes all others for good.
    """
    with opened(options) as app:
        check_known_queue(app, name)
        done = app.queues.purge(name, dry_run=True)
        if done.matched and not dry_run:
            waiting = text.count(done.matched, "waiting job")
            may_go_on(f"Remove {waiting} of queue {text.one_line(name)} for good?", yes=yes)
            done = app.queues.purge(name)
    if options.as_json:
        counts = {"matched": done.matched, "deleted": done.deleted, "cancelled": done.cancelled}
        emit_json({"name": name, **counts, "dry_run": dry_run})
    elif dry_run:
        say(f"{text.count(done.matched, 'job')} would be removed")
    else:
        cancelled = f", {done.cancelled:,} cancelled" if done.cancelled else ""
        say(f"{text.count(done.deleted, 'job')} deleted{cancelled}")
