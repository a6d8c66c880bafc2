"""`winch outbox`: messages on their way, and those that could not be delivered."""

from __future__ import annotations

import click

from winch.cli.jobs.dead import report
from winch.cli.jobs.jobs import records_of, reveal_option
from winch.cli.shared.options import StoreOptions, json_option, opened, page_options, store_options
from winch.cli.shared.output import emit_json, remark
from winch.cli.shared.question import dry_run_option, may_go_on, yes_option
from winch.cli.shared.records import job_table, summary
from winch.cli.shared.text import count, one_line
from winch.core.lifecycle import JobState

_topic_option = click.option("--topic", help="Only messages of this topic.")


@click.group()
def outbox() -> None:
    """Look at messages of the outbox, replay or purge dead ones."""


@outbox.command("list")
@_topic_option
@click.option("--state", type=click.Choice([str(state) for state in JobState]), help="Only these.")
@page_options
@reveal_option
@json_option
@store_options
def list_(
    options: StoreOptions,
    topic: str | None,
    state: str | None,
    limit: int,
    after: str | None,
    reveal: bool,
) -> None:
    """List messages, newest first; completed ones are delivered."""
    with opened(options) as app:
        wanted = None if state is None else JobState(state)
        page, following = app.outbox.list(topic, state=wanted, limit=limit, after=after)
        records = records_of(app, page, reveal=reveal)
    if options.as_json:
        shown = [summary(record, reveal=reveal) for record in records]
        emit_json({"messages": shown, "next": following})
        return
    if not records:
        remark("no messages")
        return
    job_table(records, reveal=reveal, is_dead=state == JobState.DEAD).show()
    if following:
        remark(f"there are more: add --after {following}")


@outbox.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@_topic_option
@click.option("--rate", metavar="RATE", help="Highest rate, like 100/s or 30/m.")
@dry_run_option
@json_option
@store_options
def replay(
    options: StoreOptions, ids: tuple[str, ...], topic: str | None, rate: str | None, dry_run: bool
) -> None:
    """Deliver dead messages again: by id, by topic, or all of them."""
    with opened(options) as app:
        done = app.outbox.replay(topic, ids=ids or None, rate=rate, dry_run=dry_run)
    for refusal in done.refusals:
        remark(f"winch: {one_line(str(refusal.error))}")
    report(
        options,
        "replayed",
        done.matched,
        done.replayed,
        dry_run=dry_run,
        refused=done.refused,
        what="dead message",
    )


@outbox.command()
@click.option("--topic", required=True, help="The topic.")
@click.option(
    "--older-than",
    required=True,
    metavar="TIME",
    help="Only messages dead for this long, like 30d; 0s means all.",
)
@dry_run_option
@yes_option
@json_option
@store_options
def purge(options: StoreOptions, topic: str, older_than: str, dry_run: bool, yes: bool) -> None:
    """Delete dead messages of a topic for good; later messages of their keys continue."""
    with opened(options) as app:
        matched = app.outbox.purge(topic, older_than=older_than, dry_run=True)
        gone = 0
        if not dry_run and matched:
            may_go_on(f"Delete {count(matched, 'dead message')} for good?", yes=yes)
            gone = app.outbox.purge(topic, older_than=older_than)
    report(options, "deleted", matched, gone, dry_run=dry_run, what="dead message")
