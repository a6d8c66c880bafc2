"""`winch demo`: runs the tour of `winch.demo` and prints its summary."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from winch.cli.shared import text
from winch.cli.shared.options import start_logging
from winch.cli.shared.output import Column, Table, say
from winch.demo.stage import TourEnding
from winch.demo.tour import Tour


@click.command()
@click.option("--keep", is_flag=True, help="Keep the folder with the database and the worker's log.")
@click.option("-v", "--verbose", count=True, help="Log more; repeat it to include tracebacks.")
def demo(keep: bool, verbose: int) -> None:
    """A tour on SQLite: real jobs, a real worker, a real kill.

    Takes about half a minute, needs no setup and leaves no files behind. It serves the dashboard from
    the start. On a terminal, the dashboard and new jobs keep running until Ctrl-C. Exits with 1 if a job
    does not end as expected.
    """
    start_logging(verbose)
    folder = Path(tempfile.mkdtemp(prefix="winch-demo-"))
    tour = Tour(folder)
    is_well = False
    is_kept = True
    try:
        say(text.bold("Winch demo") + text.dim(f"  in {folder}"))
        is_well = _summary(tour.run(), tour)
        if is_well and sys.stdin.isatty() and sys.stdout.isatty():
            tour.stay()
        is_kept = keep or not is_well
    except KeyboardInterrupt:
        is_kept = keep
        raise
    finally:
        tour.close()
        if is_kept:
            say(f"the database and the worker's log are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if not is_well:
        click.get_current_context().exit(1)


def _summary(endings: Sequence[TourEnding], tour: Tour) -> bool:
    """Print what was expected beside what happened; whether all of it is as expected."""
    table = Table(
        [
            Column("JOB"),
            Column("WHAT IT IS", gives_way=True, drop=1),
            Column("EXPECTED"),
            Column("ACTUAL"),
            Column(""),
        ]
    )
    for end in endings:
        mark = text.state("ok", "completed") if end.is_right else text.state("WRONG", "dead")
        table.add(end.name, end.what, end.expected, text.one_line(end.actual), mark)
    say()
    table.show(indent="  ")
    say()
    wrong = sum(not end.is_right for end in endings)
    if wrong:
        say(text.state(f"{wrong} of {len(endings)} did not end as they should.", "dead"))
    else:
        say(text.bold(f"All {len(endings)} ended as they should, in {tour.seconds():.1f}s."))
    return not wrong
