"""`winch bench`: how fast Winch is on one's own store, and what limits it there."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from winch.cli.shared import text
from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import Column, Table, emit_json, remark, say
from winch.cli.shared.question import may_go_on, yes_option
from winch.core.values.duration import parse_duration

if TYPE_CHECKING:
    from winch.cli.bench.runs import BenchRun, Figure

BAR = 20
# A process that uses this much of a core has no time to wait for a store.
BUSY = 0.8


@click.command()
@click.option(
    "--seconds", default="2s", metavar="DURATION", help="Time for each measurement. Default 2s."
)
@click.option("--only", multiple=True, metavar="NAME", help="Only this measurement; may be repeated.")
@yes_option
@json_option
@store_options
def bench(options: StoreOptions, seconds: str, only: tuple[str, ...], yes: bool) -> None:
    """Measure Winch on your store and report what limits it.

    Jobs that do nothing are stored in a separate queue, run by a worker in this process, and deleted
    afterwards. Your workers do not see them but share the store with them.
    """
    from winch.cli.bench import tasks
    from winch.cli.bench.runs import BenchRun

    with opened(
        options, must_exist=False
    ) as asked:  # one that it may make is made below, after the question
        settings = asked.settings
        store = asked.driver.describe()
    may_go_on(f"This stores and deletes up to a few hundred thousand jobs in {store}. Go on?", yes=yes)
    app = tasks.app
    app.configure({"url": settings.url, "schema": settings.schema}, config=options.config)
    run = BenchRun(
        app,
        queue=f"winch-bench-{uuid.uuid4().hex[:8]}",
        seconds=parse_duration(seconds, "--seconds").total_seconds(),
    )
    scenarios = run.scenarios
    if unknown := [name for name in only if name not in scenarios]:
        raise click.UsageError(f"no measurement named {unknown[0]!r}; there are {', '.join(scenarios)}")
    chosen = [name for name in scenarios if not only or name in only]
    figures: dict[str, Figure] = {}
    try:
        app.ready()
        for place, name in enumerate(chosen):
            _progress(place, len(chosen), name)
            figures[name] = scenarios[name]()
        _progress(len(chosen), len(chosen), "deleting the jobs")
        run.clear()
        _progress_over()
    finally:
        _clean(run)
        app.close()
    found = verdict(figures, store)
    if options.as_json:
        emit_json(
            {"store": store, "figures": [_data(one) for one in figures.values()], "verdict": found}
        )
        return
    say(text.bold(text.one_line(store)))
    say()
    _table(figures).show(indent="  ")
    say()
    for sentence in found:
        say(f"  {sentence}")


def verdict(figures: Mapping[str, Figure], store: str) -> list[str]:
    """What limits each part, in words, as far as it was measured."""
    found = []
    single, bulk, together = (
        figures.get(f"enqueue {kind}") for kind in ("single", "bulk", "concurrent")
    )
    if single is not None:
        each = 1000 / single.rate
        limit = "this process's own work" if single.busy > BUSY else "the store's durable commit"
        found.append(f"One enqueue takes {each:.2f} ms, most of it {limit}.")
        if bulk is not None:
            found.append(f"enqueue_many stores {bulk.rate / single.rate:.0f} times as many a second.")
        if together is not None:
            ratio = together.rate / single.rate
            found.append(f"100 concurrent aenqueue calls share commits: {ratio:.1f} times as many.")
    drained = figures.get("drain coroutines")
    if drained is not None:
        where = "SQLite runs in this process too; " if store.startswith("sqlite:") else ""
        if drained.busy > BUSY:
            found.append(
                f"A worker process runs {drained.rate:,.0f} empty jobs a second and has its core busy: "
                f"{where}more processes (winch worker -p) are the next step."
            )
        else:
            found.append(
                f"A worker process runs {drained.rate:,.0f} empty jobs a second and waits for the store "
                f"{1 - drained.busy:.0%} of the time: a faster disk or a nearer server is the next step."
            )
    latency = figures.get("latency")
    if latency is not None and latency.p99 is not None and latency.p50 is not None:
        found.append(
            f"An idle worker starts a job {latency.p50 * 1000:.1f} ms after the call that enqueues it "
            f"(1 of 100 takes more than {latency.p99 * 1000:.1f} ms)."
        )
    return found


def _table(figures: Mapping[str, Figure]) -> Table:
    table = Table(
        [
            Column("MEASUREMENT"),
            Column("JOBS", is_right=True, drop=1),
            Column("PER SECOND", is_right=True),
            Column("P50", is_right=True),
            Column("P99", is_right=True),
            Column("CORE BUSY", is_right=True, drop=2),
        ]
    )
    for one in figures.values():
        is_latency = one.p50 is not None
        table.add(
            one.name,
            f"{one.jobs:,}",
            "" if is_latency else f"{one.rate:,.0f}",
            "" if one.p50 is None else f"{one.p50 * 1000:.2f} ms",
            "" if one.p99 is None else f"{one.p99 * 1000:.2f} ms",
            f"{one.busy:.0%}",
        )
    return table


def _data(one: Figure) -> dict[str, Any]:
    return {
        "name": one.name,
        "jobs": one.jobs,
        "seconds": round(one.seconds, 3),
        "per_second": round(one.rate, 1),
        "p50_ms": None if one.p50 is None else round(one.p50 * 1000, 3),
        "p99_ms": None if one.p99 is None else round(one.p99 * 1000, 3),
        "core_busy": round(one.busy, 3),
    }


def _progress(done: int, of: int, what: str) -> None:
    """A bar on the terminal; nothing where the output is no terminal."""
    if sys.stderr.isatty():
        full = BAR * done // of
        click.echo(f"\r\x1b[K[{'#' * full}{'.' * (BAR - full)}] {what}", nl=False, err=True)


def _progress_over() -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)


def _clean(run: BenchRun) -> None:
    """Delete what a failed or interrupted run has left; what cannot be, is named."""
    if run.stored:
        _progress_over()
        try:
            run.clear()
        except Exception:
            remark(f"jobs are left in queue {run.queue}; delete them with `winch jobs delete`")
            raise
