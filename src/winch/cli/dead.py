"""`winch dead`: the jobs that nobody will try again by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import click

from winch.app import App
from winch.cli.jobs import act_on_each, print_job, records_of, reveal_option
from winch.cli.output import emit_json, remark, say
from winch.cli.question import dry_run_option, may_go_on, yes_option
from winch.cli.records import job_table, summary
from winch.cli.store import Said, json_option, opened, store_options
from winch.cli.text import count, now
from winch.core.duration import parse_duration
from winch.core.errors import InvalidTransition
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.engine.client import actor

CHUNK = 500


@click.group()
def dead() -> None:
    """Look at dead jobs, replay or purge them."""


@dead.command("list")
@click.option("--task", help="Only jobs of this task.")
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--after", help="Go on after this id: the next page.")
@reveal_option
@json_option
@store_options
def list_(
    said: Said, task: str | None, queue: str | None, limit: int, after: str | None, reveal: bool
) -> None:
    """List dead jobs, newest first, with what they died of."""
    with opened(said) as app:
        page = app.dead.list(task=task, queue=queue, limit=limit, after=after)
        records = records_of(app, page, reveal=reveal)
    if said.as_json:
        shown = [summary(record, reveal=reveal) for record in records]
        emit_json({"jobs": shown, "next": page.next})
        return
    if not records:
        remark("no dead jobs")
        return
    job_table(records, reveal=reveal, is_dead=True).show()
    if page.next:
        remark(f"there are more: add --after {page.next}")


@dead.command()
@click.argument("job_id", metavar="ID")
@reveal_option
@json_option
@store_options
def show(said: Said, job_id: str, reveal: bool) -> None:
    """Show a dead job's timeline, arguments and last error."""
    with opened(said) as app:
        state = app.jobs.get(job_id).state
        if state is not JobState.DEAD:
            raise InvalidTransition(job_id, state, "dead show", [JobState.DEAD])
        print_job(app, job_id, as_json=said.as_json, reveal=reveal)


@dead.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--task", help="Every dead job of this task.")
@click.option("--queue", help="Every dead job of this queue.")
@click.option("--all", "is_all", is_flag=True, help="Every dead job.")
@dry_run_option
@json_option
@store_options
def replay(
    said: Said,
    ids: tuple[str, ...],
    task: str | None,
    queue: str | None,
    is_all: bool,
    dry_run: bool,
) -> None:
    """Make dead jobs ready again, with all their attempts before them."""
    by_filter = is_all or task is not None or queue is not None
    if bool(ids) == by_filter:
        raise click.UsageError("say which dead jobs: their IDs, or --task, --queue or --all")
    with opened(said) as app:
        if not by_filter:
            act_on_each(ids, lambda job_id: _replay_one(app, job_id, dry_run), as_json=said.as_json)
            return
        # Gathered first: a job that dies again while we go on must not be taken twice.
        found = [job.id for job in _each(app, task, queue)]
        replayed = 0 if dry_run else _in_chunks(app, "retry", found)
    _report(said, "replayed", len(found), replayed, dry_run=dry_run)


def _replay_one(app: App, job_id: str, dry_run: bool) -> tuple[JobState, str]:
    state = app.jobs.get(job_id).state
    if state is not JobState.DEAD:
        raise InvalidTransition(job_id, state, "replay", [JobState.DEAD])
    if dry_run:
        return state, "would be replayed"
    return app.jobs.retry(job_id), "ready"


@dead.command()
@click.option("--older-than", metavar="DURATION", help="Only those that died longer ago, like 30d.")
@click.option("--task", help="Only jobs of this task.")
@click.option("--queue", help="Only jobs of this queue.")
@yes_option
@dry_run_option
@json_option
@store_options
def purge(
    said: Said,
    older_than: str | None,
    task: str | None,
    queue: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Delete dead jobs for good."""
    age = parse_duration(older_than, "--older-than") if older_than else timedelta(0)
    before = now() - age
    with opened(said) as app:
        found = [
            job.id
            for job in _each(app, task, queue)
            if not older_than or (job.finished_at is not None and job.finished_at <= before)
        ]
        purged = 0
        if found and not dry_run:
            may_go_on(f"Delete {count(len(found), 'dead job')} for good?", yes=yes)
            purged = _in_chunks(app, "delete", found)
    _report(said, "deleted", len(found), purged, dry_run=dry_run)


def _each(app: App, task: str | None, queue: str | None) -> Iterator[JobRecord]:
    after: str | None = None
    while True:
        page = app.dead.list(task=task, queue=queue, limit=1000, after=after)
        yield from (job.record for job in page)
        after = page.next
        if after is None:
            return


def _in_chunks(app: App, verb: str, ids: list[str]) -> int:
    driver = app.ready()
    act = driver.retry if verb == "retry" else driver.delete
    took = 0
    for start in range(0, len(ids), CHUNK):
        answers = driver.run(act(ids[start : start + CHUNK], by=actor()))
        took += sum(answer.took for answer in answers)
    return took


def _report(said: Said, done: str, matched: int, acted: int, *, dry_run: bool) -> None:
    if said.as_json:
        emit_json({"matched": matched, done: acted, "dry_run": dry_run})
    elif dry_run:
        say(f"{count(matched, 'dead job')} would be {done}")
    else:
        say(f"{count(acted, 'dead job')} {done}")
