"""`winch schedules`: look at schedules and act on them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Any

import click
import msgspec

from winch.cli.shared import text
from winch.cli.shared.options import StoreOptions, json_arguments, json_option, opened, store_options
from winch.cli.shared.output import Column, Table, emit_json, remark, report_each, say
from winch.cli.shared.question import dry_run_option, may_go_on, yes_option
from winch.core.errors import ConfigError
from winch.core.policy.calendar import WEEKDAYS, OnHoliday
from winch.core.values import codec
from winch.core.values.bounds import is_int
from winch.core.values.duration import format_duration
from winch.core.values.redact import mask
from winch.engine.tasks.schedules import Run, Schedule

HISTORY = 10


@click.group()
def schedules() -> None:
    """Look at schedules, add, pause and trigger them."""


@schedules.command("list")
@json_option
@store_options
def list_(options: StoreOptions) -> None:
    """List the schedules with their next times."""
    with opened(options) as app:
        found = app.schedules.list()
    if options.as_json:
        emit_json({"schedules": [schedule_data(one) for one in found]})
        return
    if not found:
        remark("no schedules")
        return
    table = Table(
        [
            Column("SCHEDULE", gives_way=True),
            Column("TASK", gives_way=True, drop=1),
            Column("WHEN", gives_way=True),
            Column("NEXT"),
            Column("LAST WINDOW", drop=2),
            Column("NOTE", gives_way=True),
        ]
    )
    for one in found:
        is_new = one.last_window == one.created_at
        table.add(
            text.one_line(one.name),
            text.one_line(one.task),
            _when(one),
            "" if one.next_at is None or _is_still(one) else _ahead(one.next_at, one.now),
            "" if is_new else text.ago(one.last_window, one.now),
            note(one) or " ",
        )
    table.show()


def note(one: Schedule) -> str:
    """What is out of the ordinary about it."""
    if one.paused_at is not None:
        why = f": {text.one_line(one.pause_reason)}" if one.pause_reason else ""
        return f"paused {text.ago(one.paused_at, one.now)}{why}"
    if not one.is_active:
        return "inactive: no live worker or server has it in its code"
    if one.late_by is not None:
        return f"late by {text.span(one.late_by)}: no worker ticks"
    if one.waiting is not None:
        return f"the window of {text.stamp(one.waiting)} waits for an earlier job"
    return ""


def _is_still(one: Schedule) -> bool:
    return one.paused_at is not None or not one.is_active


def _ahead(moment: datetime, now: datetime) -> str:
    return f"in {text.span(moment - now)}" if moment > now else "due"


def _when(one: Schedule) -> str:
    timing = one.timing
    if timing.every is not None:
        return f"every {format_duration(timing.every)}"
    return f"{timing.cron} {'' if timing.tz == 'UTC' else timing.tz}".rstrip()


def schedule_data(one: Schedule) -> dict[str, Any]:
    return {
        "name": one.name,
        "task": one.task,
        "cron": one.timing.cron,
        "every": one.timing.every,
        "tz": one.timing.tz,
        "dst": str(one.timing.dst),
        "misfire": str(one.misfire),
        "catch_up": one.catch_up,
        "overlap": str(one.overlap),
        "jitter": one.jitter,
        "calendar": None if one.timing.calendar is None else one.timing.calendar.name,
        "on_holiday": None if one.timing.calendar is None else str(one.timing.on_holiday),
        "misfire_deadline": one.misfire_deadline,
        "queue": one.queue,
        "is_code": one.is_code,
        "is_active": one.is_active,
        "is_paused": one.paused_at is not None,
        "paused_at": one.paused_at,
        "pause_reason": one.pause_reason,
        "last_window": one.last_window,
        "next_at": one.next_at,
        "late_by": one.late_by,
    }


@schedules.command()
@click.argument("name")
@click.option("--reveal", is_flag=True, help="Do not mask secrets in the arguments.")
@json_option
@store_options
def show(options: StoreOptions, name: str, reveal: bool) -> None:
    """Show a schedule, its next times and the results of the last ones."""
    with opened(options) as app:
        one = app.schedules.get(name)
        runs = app.schedules.history(name, limit=HISTORY)
    args = codec.loads(one.args, what="args")
    shown = args if reveal else mask(args)
    if options.as_json:
        emit_json(
            {
                **schedule_data(one),
                "args": shown,
                "next": one.next(),
                "history": [run_data(run) for run in runs],
            }
        )
        return
    say(text.bold(text.one_line(one.name)))
    lines = {
        "task": text.one_line(one.task),
        "when": f"{_when(one)}  ({one.timing.words()})",
        "policies": f"misfire {one.misfire}, overlap {one.overlap}"
        + (f", jitter {format_duration(one.jitter)}" if one.jitter else "")
        + (f", misfire deadline {format_duration(late)}" if (late := one.misfire_deadline) else "")
        + (f", dst {one.timing.dst}" if one.timing.is_moved_by_dst else ""),
        "calendar": _calendar(one),
        "queue": text.one_line(one.queue),
        "args": text.one_line(codec.dumps(shown, what="args")),
        "defined": "in code" if one.is_code else "through the API",
        "note": note(one),
        "next": ", ".join(text.stamp(window) for window in one.next()),
    }
    for title, value in lines.items():
        if value:
            say(f"  {text.padded(title, 10)}{value}")
    if runs:
        say()
        _history(runs).show(indent="  ")


def _calendar(one: Schedule) -> str:
    """The name of its calendar, how many days that has, and what becomes of their times."""
    days = one.timing.calendar
    if days is None:
        return ""
    weekend = "".join(f", {WEEKDAYS[number]}" for number in days.weekend)
    closed = f"{text.count(len(days.days), 'closed day')}{weekend}"
    instead = "the next open day instead" if one.timing.on_holiday is OnHoliday.NEXT else "no job"
    return f"{text.one_line(days.name)}: {closed}; {instead}"


def _history(runs: list[Run]) -> Table:
    table = Table([Column("WINDOW"), Column("WHAT"), Column("JOB"), Column("STATE"), Column("NOTE")])
    for run in runs:
        table.add(
            text.stamp(run.window),
            str(run.kind),
            run.job or "",
            text.state(run.state) if run.state is not None else "",
            text.one_line(run.note or "") or " ",
        )
    return table


def run_data(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.structs.asdict(run)
    return found


def timing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """When a schedule enqueues its job."""
    for option in reversed(
        (
            click.option("--cron", metavar="EXPRESSION", help="Five fields, or a name such as @daily."),
            click.option(
                "--every", metavar="DURATION", help="An interval like 5m, counted from midnight UTC."
            ),
            click.option("--tz", metavar="ZONE", help="The time zone of --cron, like Europe/Berlin."),
            click.option(
                "--dst",
                type=click.Choice(["once", "skip", "twice"]),
                help="What to do when clocks change.",
            ),
            click.option(
                "--misfire",
                type=click.Choice(["skip", "latest", "all"]),
                help="What to do about missed times.",
            ),
            click.option(
                "--overlap",
                type=click.Choice(["allow", "skip", "queue"]),
                help="What to do while the last job runs.",
            ),
            click.option("--jitter", metavar="DURATION", help="Spread the jobs over this much time."),
            click.option("--calendar", metavar="NAME", help="A calendar of the app with closed days."),
            click.option(
                "--on-holiday",
                type=click.Choice(["skip", "next"]),
                help="What to do on closed days: no job, or the next open day.",
            ),
            click.option(
                "--misfire-deadline",
                metavar="DURATION",
                help="How late a missed time may still get its job.",
            ),
        )
    ):
        command = option(command)
    return command


@schedules.command()
@click.argument("name")
@click.argument("task")
@timing_options
@click.option(
    "--args", "args_text", default="{}", metavar="JSON", help="""The arguments, like '{"a": 1}'."""
)
@click.option("--queue", help="A queue other than the task's own.")
@json_option
@store_options
def add(options: StoreOptions, name: str, task: str, args_text: str, **given: Any) -> None:
    """Add a schedule that stays until it is removed; needs the app (-A)."""
    args = json_arguments(args_text)
    with opened(options, must_exist=False, needs_tasks=True) as app:
        one = app.schedules.add(name, task, args=args, **given)
    if options.as_json:
        emit_json(schedule_data(one))
    else:
        say(f"{text.one_line(name)}  added; next {_stamps(one.next(1))}")


@schedules.command()
@click.argument("name")
@timing_options
@click.option("--args", "args_text", metavar="JSON", help="Other arguments; needs the app (-A).")
@click.option("--queue", help="Another queue; needs the app (-A).")
@json_option
@store_options
def edit(options: StoreOptions, name: str, args_text: str | None, **given: Any) -> None:
    """Change the given settings; new times apply from now on."""
    args = None if args_text is None else json_arguments(args_text)
    if args is None and all(value is None for value in given.values()):
        raise click.UsageError("give at least one option to change: --cron, --every, --args …")
    needs_tasks = args is not None or given["queue"] is not None or bool(given["calendar"])
    with opened(options, must_exist=False, needs_tasks=needs_tasks) as app:
        one = app.schedules.edit(name, args=args, **given)
    if options.as_json:
        emit_json(schedule_data(one))
    else:
        say(f"{text.one_line(name)}  changed; next {_stamps(one.next(1))}")


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--reason", help="Shown with the schedule.")
@json_option
@store_options
def pause(options: StoreOptions, names: tuple[str, ...], reason: str | None) -> None:
    """Stop enqueuing jobs until the schedules are resumed."""
    with opened(options) as app:
        for name in names:
            app.schedules.pause(name, reason=reason)
    report_each("schedules", names, "paused", as_json=options.as_json)


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@store_options
def resume(options: StoreOptions, names: tuple[str, ...]) -> None:
    """Enqueue jobs again from now on."""
    with opened(options) as app:
        for name in names:
            app.schedules.resume(name)
    report_each("schedules", names, "resumed", as_json=options.as_json)


@schedules.command()
@click.argument("name")
@json_option
@store_options
def trigger(options: StoreOptions, name: str) -> None:
    """Enqueue the schedule's job now and print its id."""
    with opened(options) as app:
        job = app.schedules.trigger(name)
    if options.as_json:
        emit_json({"name": name, "job": job.id})
    else:
        say(job.id)


@schedules.command()
@click.argument("name")
@json_option
@store_options
def skip(options: StoreOptions, name: str) -> None:
    """Skip the next time."""
    with opened(options) as app:
        window = app.schedules.skip(name)
    if options.as_json:
        emit_json({"name": name, "skipped": window})
    else:
        say(f"{text.one_line(name)}  {text.stamp(window)} is skipped")


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@store_options
def remove(options: StoreOptions, names: tuple[str, ...]) -> None:
    """Remove the schedules; their jobs stay."""
    with opened(options) as app:
        for name in names:
            app.schedules.remove(name)
    report_each("schedules", names, "removed", as_json=options.as_json)


@schedules.command("next")
@click.argument("name")
@click.option("-n", "--count", default=5, type=click.IntRange(1, 1000), help="How many times to print.")
@json_option
@store_options
def next_(options: StoreOptions, name: str, count: int) -> None:
    """Print the next times, in UTC and in the schedule's time zone."""
    with opened(options) as app:
        one = app.schedules.get(name)
    windows = one.next(count)
    if options.as_json:
        emit_json({"name": name, "next": windows})
        return
    for window in windows:
        local = window.astimezone(one.timing.zone)
        own = "" if one.timing.tz == "UTC" else f"  {local:%Y-%m-%d %H:%M:%S %Z}"
        say(f"{text.stamp(window)}{own}")


@schedules.command()
@click.argument("name")
@click.option("--from", "start", required=True, metavar="TIME", help="The first time, in ISO 8601.")
@click.option("--to", "end", required=True, metavar="TIME", help="The end, not included.")
@click.option("--rate", metavar="RATE", help="Spread the jobs: at most 30/m, for example.")
@click.option("--priority", metavar="N", help="A priority of these jobs alone.")
@yes_option
@dry_run_option
@json_option
@store_options
def backfill(
    options: StoreOptions,
    name: str,
    start: str,
    end: str,
    rate: str | None,
    priority: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Enqueue the jobs of past times that have none.

    Times without an offset are in the time zone of the schedule. A time that has a job gets no second
    one, so the command may be repeated.
    """
    with opened(options) as app:
        zone = app.schedules.get(name).timing.zone
        first, last = _moment(start, zone, "--from"), _moment(end, zone, "--to")
        given: dict[str, Any] = {"rate": rate, "priority": _priority(priority)}
        done = app.schedules.backfill(name, first, last, dry_run=True, **given)
        if done.windows and not dry_run:
            jobs = text.count(done.enqueued, "job")
            between = f"{text.stamp(done.windows[0])} to {text.stamp(done.windows[-1])}"
            may_go_on(f"Enqueue {jobs} of {text.one_line(name)}, {between}?", yes=yes)
            done = app.schedules.backfill(name, first, last, **given)
    if options.as_json:
        emit_json({**msgspec.structs.asdict(done), "is_dry_run": dry_run})
        return
    if dry_run:
        for window in done.windows:
            own = "" if zone is UTC else f"  {window.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"
            say(f"{text.stamp(window)}{own}")
    held = f", {done.held:,} held back by a unique key" if done.held else ""
    remark(
        f"{text.count(done.matched, 'time')}: {text.count(done.enqueued, 'job')} "
        f"{'to enqueue' if dry_run else 'enqueued'}, {done.existing:,} had one{held}"
    )


def _moment(given: str, zone: tzinfo, option: str) -> datetime:
    try:
        moment = datetime.fromisoformat(given)
    except ValueError as error:
        raise ConfigError(f"{option} must be a time in ISO 8601, got {given[:40]!r}") from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)


def _priority(given: str | None) -> int | str | None:
    return int(given) if given is not None and is_int(given) else given


def _stamps(windows: list[datetime]) -> str:
    return ", ".join(text.stamp(window) for window in windows) or "never"
