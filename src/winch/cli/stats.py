"""`winch stats`: how many jobs there are, and where."""

from __future__ import annotations

import click

from winch.cli import text
from winch.cli.output import emit_json, say
from winch.cli.queues import queue_data, queue_table
from winch.cli.store import Said, json_option, opened, store_options
from winch.cli.workers import is_live

CAP = 10_000


@click.command()
@json_option
@store_options
def stats(said: Said) -> None:
    """Count the jobs by state and queue."""
    with opened(said) as app:
        driver = app.ready()
        counts = driver.run(driver.counts(cap=CAP))
        queues = app.queues.list()
        live = [session for session in app.workers.list() if is_live(session)]
        store = driver.describe()
    slots, running = sum(s.slots for s in live), sum(s.running for s in live)
    if said.as_json:
        emit_json(
            {
                "store": store,
                "jobs": {str(state): number for state, number in counts.items()},
                # Counting further would cost the store more than the exact number is worth.
                "jobs_capped_at": CAP,
                "queues": [queue_data(queue) for queue in queues],
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
    busy = f", {running} of {text.count(slots, 'slot')} busy" if live else ""
    processes = "process" if len(live) == 1 else "processes"
    say(f"  {len(live):,} live worker {processes}{busy}")
