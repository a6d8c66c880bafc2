"""`winch jobs`: find jobs and act on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from winch.app import App
from winch.cli.shared.options import StoreOptions, json_option, opened, page_options, store_options
from winch.cli.shared.output import complain, emit_json, remark, say
from winch.cli.shared.question import dry_run_option, may_go_on, yes_option
from winch.cli.shared.records import detail, job_table, show_job, summary, workers_by_session
from winch.cli.shared.text import count
from winch.core.errors import ConfigError, DuplicateJob, InvalidTransition, JobNotFound, WinchError
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState, sources
from winch.engine.base import operation
from winch.engine.client.job import Job

reveal_option: Callable[[Any], Any] = click.option(
    "--reveal", is_flag=True, help="Show masked values, and encrypted ones if the keys are available."
)
ids_argument: Callable[[Any], Any] = click.argument("ids", nargs=-1, required=True, metavar="ID...")


@click.group()
def jobs() -> None:
    """Look at jobs and act on them."""


@jobs.command("list")
@click.option(
    "--state", "states", multiple=True, help="Only these states; repeat the option or write a,b."
)
@click.option("--task", help="Only jobs of this task.")
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--tag", help="Only jobs with this tag.")
@page_options
@reveal_option
@json_option
@store_options
def list_(
    options: StoreOptions,
    states: tuple[str, ...],
    task: str | None,
    queue: str | None,
    tag: str | None,
    limit: int,
    after: str | None,
    reveal: bool,
) -> None:
    """List jobs, newest first."""
    wanted = [state.strip() for given in states for state in given.split(",") if state.strip()]
    with opened(options) as app:
        page = app.jobs.list(
            state=wanted or None, task=task, queue=queue, tag=tag, limit=limit, after=after
        )
        records = records_of(app, page, reveal=reveal)
    none = "no jobs match" if wanted or task or queue or tag else "no jobs"
    print_page(options, records, page.next, reveal=reveal, none=none)


@jobs.command()
@click.argument("job_id", metavar="ID")
@reveal_option
@json_option
@store_options
def show(options: StoreOptions, job_id: str, reveal: bool) -> None:
    """Show a job's timeline, arguments and result."""
    with opened(options) as app:
        print_job(app, job_id, as_json=options.as_json, reveal=reveal)


def records_of(app: App, found: Sequence[Job[Any]], *, reveal: bool) -> list[JobRecord]:
    """The records; with `reveal` what is encrypted in them is opened, as far as the keys are here."""
    records = [job.record for job in found]
    return [app.client.revealed(record) for record in records] if reveal else records


def print_page(
    options: StoreOptions,
    records: list[JobRecord],
    following: str | None,
    *,
    reveal: bool,
    none: str,
    is_dead: bool = False,
) -> None:
    """One page of a list of jobs; `following` is the cursor of the next page."""
    if options.as_json:
        emit_json({"jobs": [summary(record, reveal=reveal) for record in records], "next": following})
        return
    if not records:
        remark(none)
        return
    job_table(records, reveal=reveal, is_dead=is_dead).show()
    if following:
        remark(f"there are more: add --after {following}")


def print_job(app: App, job_id: str, *, as_json: bool, reveal: bool) -> None:
    [record] = records_of(app, [app.jobs.get(job_id)], reveal=reveal)
    record = operation.run(app.client.driver(), app.client.with_steps(record, reveal=reveal))
    workers = workers_by_session(app.workers.list(is_ended_too=True))
    if as_json:
        emit_json(detail(record, workers, reveal=reveal))
    else:
        show_job(record, workers, reveal=reveal)


@jobs.command()
@ids_argument
@click.option("--reason", help="Kept with the job.")
@json_option
@store_options
def cancel(options: StoreOptions, ids: tuple[str, ...], reason: str | None) -> None:
    """Cancel waiting jobs; ask running ones to stop."""
    with opened(options) as app:

        def act(job_id: str) -> tuple[JobState, str]:
            was = app.jobs.cancel(job_id, reason=reason)
            is_running = was is JobState.RUNNING
            return was, "asked to stop" if is_running else "cancelled"

        act_on_each(ids, act, as_json=options.as_json)


@jobs.command()
@ids_argument
@click.option("--from-step", metavar="NAME", help="Repeat this step and all later ones.")
@json_option
@store_options
def retry(options: StoreOptions, ids: tuple[str, ...], from_step: str | None) -> None:
    """Make jobs ready now: waiting jobs early, final jobs again."""
    with opened(options) as app:

        def act(job_id: str) -> tuple[JobState, str]:
            was = app.jobs.retry(job_id, from_step=from_step)
            return was, "ready"

        act_on_each(ids, act, as_json=options.as_json)


@jobs.command()
@ids_argument
@yes_option
@dry_run_option
@json_option
@store_options
def delete(options: StoreOptions, ids: tuple[str, ...], yes: bool, dry_run: bool) -> None:
    """Delete jobs for good; they must not be running."""
    with opened(options) as app:
        if dry_run:

            def look(job_id: str) -> tuple[JobState, str]:
                state = app.jobs.get(job_id).state
                if state not in sources("delete"):
                    raise InvalidTransition(job_id, state, "delete", sources("delete"))
                return state, "would be deleted"

            act_on_each(ids, look, as_json=options.as_json)
            return
        may_go_on(f"Delete {count(len(ids), 'job')} for good?", yes=yes)

        def act(job_id: str) -> tuple[JobState, str]:
            was = app.jobs.delete(job_id)
            return was, "deleted"

        act_on_each(ids, act, as_json=options.as_json)


def act_on_each(
    ids: tuple[str, ...], act: Callable[[str], tuple[JobState, str]], *, as_json: bool
) -> None:
    """Act on every job, whatever happens to the others; exit 1 when one of them refused."""
    results: list[dict[str, str | None]] = []
    failed = 0
    for job_id in dict.fromkeys(ids):
        try:
            was, done = act(job_id)
        except (JobNotFound, InvalidTransition, DuplicateJob) as error:
            failed += 1
            results.append({"id": job_id, "was": getattr(error, "state", None), "error": str(error)})
            if not as_json:
                complain(str(error))
            continue
        except ConfigError as error:
            raise ConfigError(_done_before(str(error), len(results))) from error
        except WinchError as error:
            if results:
                complain(_done_before("this one failed", len(results)))
            raise error
        results.append({"id": job_id, "was": was, "done": done})
        if not as_json:
            say(f"{job_id}  {done} (was {was})")
    if as_json:
        emit_json({"jobs": results})
    if failed:
        click.get_current_context().exit(1)


def _done_before(message: str, number: int) -> str:
    return f"{message}; {count(number, 'job')} before it went through" if number else message
