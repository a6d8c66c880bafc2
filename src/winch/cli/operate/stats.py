"""`winch stats`: how many jobs there are, and where."""

from __future__ import annotations

import time
from datetime import timedelta

import click
import msgspec

from winch.cli.operate.queues import queue_data, queue_table
from winch.cli.operate.workers import is_live
from winch.cli.shared import text
from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import Column, Table, emit_json, say
from winch.engine.observe.task_times import Percentiles, TaskTimes, task_times

CAP = 10_000
MOST_TASKS = 20


@click.command()
@json_option
@store_options
def stats(options: StoreOptions) -> None:
    """Count the jobs by state and queue; per task, how long attempts took in the last hour."""
    with opened(options) as app:
        driver = app.ready()
        counts = driver.run(driver.counts(cap=CAP))
        queues = app.queues.list()
        live = [session for session in app.workers.list() if is_live(session)]
        tasks = app.client.run(task_times(driver, int(time.time())))
        store = driver.describe()
    slots, running = sum(s.slots for s in live), sum(s.running for s in live)
    if options.as_json:
        emit_json(
            {
                "store": store,
                "jobs": {str(state): number for state, number in counts.items()},
                # Counting further would cost the store more than the exact number is worth.
                "jobs_capped_at": CAP,
                "queues": [queue_data(queue) for queue in queues],
                "tasks": [msgspec.to_builtins(one) for one in tasks],
                "workers": {"live": len(live), "slots": slots, "running": running},
            }
        )
        return
    say(text.bold(text.one_line(store)))
    say()
    for state, number in counts.items():
        shown = f"{number:,}+" if number >= CAP else f"{number:,}"
        mark = text.padded(text.state(state) if number else text.dim(state), 10)
        say(f"  {mark} {text.padded(shown if number else text.dim('0'), 9, is_right=True)}")
    say()
    if queues:
        queue_table(queues).show(indent="  ")
        say()
    if tasks:
        _task_table(tasks).show(indent="  ")
        say()
    busy = f", {running} of {text.count(slots, 'slot')} busy" if live else ""
    processes = "process" if len(live) == 1 else "processes"
    say(f"  {len(live):,} live worker {processes}{busy}")


def _task_table(tasks: list[TaskTimes]) -> Table:
    table = Table(
        [
            Column("TASK, LAST HOUR", gives_way=True),
            Column("STARTED", is_right=True),
            Column("FAILED", is_right=True),
            Column("RUN P50/P95/P99", is_right=True),
            Column("WAIT P50/P95/P99", is_right=True, drop=1),
        ]
    )
    for one in tasks[:MOST_TASKS]:
        table.add(
            text.one_line(one.task),
            f"{one.started:,}",
            f"{one.failed:,}",
            _times(one.run),
            _times(one.wait),
        )
    return table


def _times(found: Percentiles) -> str:
    each = (found.p50, found.p95, found.p99)
    return " / ".join("-" if value is None else _span(value) for value in each)


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.1f}ms" if seconds < 0.01 else text.span(timedelta(seconds=seconds))
