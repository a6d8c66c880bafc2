"""`winch dead`: the jobs that no worker will try again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click
import msgspec

from winch.app import App
from winch.cli.jobs.jobs import act_on_each, print_job, print_page, records_of, reveal_option
from winch.cli.shared.options import (
    StoreOptions,
    json_option,
    limit_option,
    opened,
    page_options,
    store_options,
)
from winch.cli.shared.output import Column, Table, emit_json, remark, say
from winch.cli.shared.question import dry_run_option, may_go_on, yes_option
from winch.cli.shared.text import ago, count, now, one_line
from winch.core.errors import InvalidTransition
from winch.core.lifecycle import JobState
from winch.core.values import codec
from winch.core.values.duration import parse_duration
from winch.core.values.redact import mask_text
from winch.storage.params import DeadGroup


@click.group()
def dead() -> None:
    """Look at dead jobs, replay or purge them."""


@dead.command("list")
@click.option("--task", help="Only jobs of this task.")
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--group", metavar="FINGERPRINT", help="Only jobs of this group; see `dead groups`.")
@page_options
@reveal_option
@json_option
@store_options
def list_(
    options: StoreOptions,
    task: str | None,
    queue: str | None,
    group: str | None,
    limit: int,
    after: str | None,
    reveal: bool,
) -> None:
    """List dead jobs with their errors, newest first."""
    with opened(options) as app:
        page = app.dead.list(task=task, queue=queue, group=group, limit=limit, after=after)
        records = records_of(app, page, reveal=reveal)
    print_page(options, records, page.next, reveal=reveal, none="no dead jobs", is_dead=True)


@dead.command()
@click.argument("job_id", metavar="ID")
@reveal_option
@json_option
@store_options
def show(options: StoreOptions, job_id: str, reveal: bool) -> None:
    """Show a dead job's timeline, arguments and last error."""
    with opened(options) as app:
        state = app.jobs.get(job_id).state
        if state is not JobState.DEAD:
            raise InvalidTransition(job_id, state, "dead show", [JobState.DEAD])
        print_job(app, job_id, as_json=options.as_json, reveal=reveal)


@dead.command()
@click.option("--task", help="Only jobs of this task.")
@click.option("--queue", help="Only jobs of this queue.")
@limit_option
@reveal_option
@json_option
@store_options
def groups(options: StoreOptions, task: str | None, queue: str | None, limit: int, reveal: bool) -> None:
    """Group dead jobs by cause, largest group first."""
    with opened(options) as app:
        found = app.dead.groups(task=task, queue=queue, limit=limit)
    if options.as_json:
        emit_json({"groups": [_as_json(group, reveal) for group in found]})
        return
    if not found:
        remark("no dead jobs")
        return
    table = Table(
        [
            Column("GROUP"),
            Column("JOBS", is_right=True),
            Column("TASK", gives_way=True),
            Column("LAST"),
            Column("FIRST", drop=1),
            Column("DIED OF", gives_way=True),
        ]
    )
    at = now()
    for group in found:
        error_text = f"{group.error_name}: {_masked(group.message, reveal)}"
        table.add(
            group.fingerprint,
            f"{group.count:,}",
            one_line(group.task),
            ago(group.last_at, at),
            ago(group.first_at, at),
            one_line(error_text.partition("\n")[0]),
        )
    table.show()


def _as_json(group: DeadGroup, reveal: bool) -> dict[str, Any]:
    return {**msgspec.structs.asdict(group), "message": _masked(group.message, reveal)}


def _masked(message: str, reveal: bool) -> str:
    return message if reveal else mask_text(message)


@dead.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--task", help="Every dead job of this task.")
@click.option("--queue", help="Every dead job of this queue.")
@click.option("--group", metavar="FINGERPRINT", help="Every job of this group; see `dead groups`.")
@click.option("--all", "is_all", is_flag=True, help="Every dead job.")
@click.option("--rate", metavar="RATE", help="Highest rate, like 100/s or 30/m.")
@click.option("--args", "args_text", metavar="JSON", help="Run with these arguments instead.")
@click.option("--attempts", type=click.IntRange(1), help="Give each this many attempts.")
@click.option("--to-queue", help="Put them into this queue.")
@click.option("--force", is_flag=True, help="With --args: even if the app does not know the task.")
@yes_option
@dry_run_option
@json_option
@store_options
def replay(
    options: StoreOptions,
    ids: tuple[str, ...],
    task: str | None,
    queue: str | None,
    group: str | None,
    is_all: bool,
    rate: str | None,
    args_text: str | None,
    attempts: int | None,
    to_queue: str | None,
    force: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Make dead jobs ready again, with all their attempts.

    Asks for confirmation before it replays with other arguments. With an app (-A), it checks them
    against the task.
    """
    by_filter = is_all or task is not None or queue is not None or group is not None
    if bool(ids) == by_filter:
        raise click.UsageError("choose the dead jobs: by ID, or with --task, --queue, --group or --all")
    args = None if args_text is None else codec.loads_strict(args_text, what="--args")
    how: dict[str, Any] = {
        "args": args,
        "attempts": attempts,
        "to_queue": to_queue,
        "force": force,
        "dry_run": dry_run,
    }
    with opened(options) as app:
        if args is not None and not dry_run:
            which: dict[str, Any] = {"task": task, "queue": queue, "group": group}
            matched = len(ids) or app.dead.replay(**which, **how | {"dry_run": True}).matched
            may_go_on(f"Replay {count(matched, 'dead job')} with other arguments?", yes=yes)
        if not by_filter:
            act_on_each(ids, lambda job_id: _replay_one(app, job_id, how), as_json=options.as_json)
            return
        done = app.dead.replay(task=task, queue=queue, group=group, rate=rate, **how)
    for refusal in done.refusals:
        remark(f"winch: {one_line(str(refusal.error))}")
    report(options, "replayed", done.matched, done.replayed, dry_run=dry_run, refused=done.refused)


def _replay_one(app: App, job_id: str, how: dict[str, Any]) -> tuple[JobState, str]:
    done = app.dead.replay([job_id], **how)
    for refusal in done.refusals:
        raise refusal.error
    return JobState.DEAD, "would be replayed" if done.is_dry_run else "ready"


@dead.command()
@click.option(
    "--older-than", metavar="DURATION", help="Only jobs that died longer ago than this, like 30d."
)
@click.option("--keep", type=click.IntRange(0), help="Keep this many of the newest jobs of each task.")
@click.option(
    "--max-bytes",
    type=click.IntRange(0),
    help="Keep at most this many bytes of each task, newest first.",
)
@click.option("--task", help="Only jobs of this task.")
@click.option("--queue", help="Only jobs of this queue.")
@yes_option
@dry_run_option
@json_option
@store_options
def purge(
    options: StoreOptions,
    older_than: str | None,
    keep: int | None,
    max_bytes: int | None,
    task: str | None,
    queue: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Delete dead jobs for good: all of them, or those that match the options."""
    rules: dict[str, Any] = {"keep": keep, "max_bytes": max_bytes, "task": task, "queue": queue}
    if older_than is not None:
        rules["older_than"] = parse_duration(older_than, "--older-than")
    elif keep is None and max_bytes is None:
        rules["older_than"] = timedelta(0)
    with opened(options) as app:
        matched = app.dead.purge(**rules, dry_run=True)
        purged = 0
        if matched and not dry_run:
            may_go_on(f"Delete {count(matched, 'dead job')} for good?", yes=yes)
            purged = app.dead.purge(**rules)
    report(options, "deleted", matched, purged, dry_run=dry_run)


def report(
    options: StoreOptions,
    done: str,
    matched: int,
    acted: int,
    *,
    dry_run: bool,
    refused: int | None = None,
    what: str = "dead job",
) -> None:
    """Say how many were meant and what became of them."""
    if options.as_json:
        answer: dict[str, Any] = {"matched": matched, done: acted, "dry_run": dry_run}
        emit_json(answer if refused is None else answer | {"refused": refused})
    elif dry_run:
        say(f"{count(matched, what)} would be {done}")
    else:
        refused_part = f", {refused:,} refused" if refused else ""
        say(f"{count(acted, what)} {done}{refused_part}")
