"""`winch move`: bring the jobs of one store to another while producers and workers run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import msgspec

from winch.app import App
from winch.cli.shared.audit import noted
from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import emit_json, remark, say
from winch.cli.shared.question import dry_run_option, may_go_on, yes_option
from winch.core.errors import ConfigError, SchemaMismatch
from winch.core.values.size import format_size
from winch.engine.moving import checks
from winch.engine.moving.mover import Mover
from winch.engine.moving.route import MoveStep, Route, Scope
from winch.storage.protocol import Driver, advice

Tell = Callable[[str], None]


@click.command()
@click.option("--to", metavar="URL", help="The store that the jobs go to; by default move_to.")
@click.option("--queue", "-Q", metavar="QUEUE", help="Move this queue alone.")
@click.option("--also", metavar="QUEUE", multiple=True, help="And this one; may be given again.")
@click.option("--tenant", metavar="TENANT", help="Move the jobs of this tenant alone.")
@click.option("--history", is_flag=True, help="Move completed and cancelled jobs, too.")
@click.option("--resume", is_flag=True, help="Continue a move that was interrupted.")
@click.option("--cutover", is_flag=True, help="End the move: no live job is left where it began.")
@click.option("--back", is_flag=True, help="Bring everything back to the store it came from.")
@dry_run_option
@yes_option
@json_option
@store_options
def move(
    options: StoreOptions,
    to: str | None,
    queue: str | None,
    also: tuple[str, ...],
    tenant: str | None,
    history: bool,
    resume: bool,
    cutover: bool,
    back: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move jobs to another store while producers and workers run.

    Set move_to (WINCH_MOVE_TO) to the new store for all producers and workers first, and migrate it.
    Start workers on it when the move is open. Then end the move with --cutover, or go --back.
    """
    if cutover + back + resume > 1:
        raise click.UsageError("give one of --resume, --cutover and --back")
    if also and queue is None:
        raise click.UsageError("--also adds a queue to the one of --queue")
    if tenant is not None and queue is not None:
        raise click.UsageError("give --queue or --tenant: a tenant moves with all its queues")
    scope = Scope(queues=() if queue is None else tuple(dict.fromkeys((queue, *also))), tenant=tenant)
    with opened(options) as app, opened_target(app, to) as target:
        source = getattr(app.ready(), "source", app.driver)
        if source.describe() == target.describe():
            raise click.UsageError(f"--to names the store that the jobs are in: {source.describe()}")
        tell = remark if options.as_json else say
        mover = Mover(source, target, tell, waits_for_lock=resume or back)
        route = mover.route()
        if route is not None and route.step is not MoveStep.DONE:
            mover.check_target(route)
        try:
            if dry_run:
                _dry_run(options, mover, scope, history=history)
            elif cutover or back or resume:
                _continue(app, mover, route, tell, cutover=cutover, back=back)
            else:
                _begin(app, mover, scope, tell, history=history, yes=yes)
        finally:
            mover.release()
        if options.as_json and not dry_run:
            after = mover.route()
            emit_json({"step": None if after is None else str(after.step)})


@contextmanager
def opened_target(app: App, to: str | None) -> Iterator[Driver]:
    """The store that the jobs go to, with its schema."""
    url = to or app.settings.move_to
    if url is None:
        raise click.UsageError("give the store that the jobs go to: --to URL, or set move_to")
    target = app.connected(url)
    try:
        status = target.check_schema()
        if not status.is_ready and target.capabilities.migrates_itself:
            target.migrate()
        elif not status.is_ready:
            raise SchemaMismatch(
                f"{target.describe()} has schema {status.current or 'none'}, this release needs "
                f"{status.newest}: {advice(status)} --url with its URL"
            )
        yield target
    finally:
        target.close()


def _begin(app: App, mover: Mover, scope: Scope, tell: Tell, *, history: bool, yes: bool) -> None:
    mover.refuse_second(mover.route())
    if reasons := checks.refusals(mover.source, mover.target, scope, mover.route()):
        raise ConfigError("nothing was moved: " + "; ".join(reasons))
    what = str(scope)
    may_go_on(
        f"Move {what} from {mover.source.describe()} to {mover.target.describe()}? Producers must have "
        "move_to set.",
        yes=yes,
    )
    route = mover.begin(scope, final_too=history)
    noted(app, "begin move", what, to=route.address)
    _finish(mover, route, tell)


def _finish(mover: Mover, route: Route, tell: Tell) -> None:
    route = mover.drain(mover.advance(route))
    if route.step is MoveStep.BACK_FREE:
        mover.end_back(route)
    else:
        tell("no live job is left where they began: run `winch move --cutover`, or `winch move --back`")


def _continue(
    app: App, mover: Mover, route: Route | None, tell: Tell, *, cutover: bool, back: bool
) -> None:
    if route is None:
        raise ConfigError(f"no move is under way from {mover.source.describe()}")
    if route.step is MoveStep.DONE:
        if cutover or back:
            raise ConfigError(f"{route.scope} was cut over to {route.address}: move from there instead")
        mover.drain(route)  # what came from processes that do not follow the route
        tell("no live job is left where they began")
    elif cutover:
        route = mover.cut_over(route)
        noted(app, "cut move over", route.address)
    elif back and not route.step.is_back:
        noted(app, "take move back", route.address)
        route = mover.turn_back(route)
        if mover.route() is not None:
            _finish(mover, route, tell)
    else:
        _finish(mover, route, tell)


def _dry_run(options: StoreOptions, mover: Mover, scope: Scope, *, history: bool) -> None:
    found = checks.sizes(mover.source, scope, final_too=history)
    reasons = checks.refusals(mover.source, mover.target, scope, mover.route())
    if options.as_json:
        emit_json({**msgspec.to_builtins(found), "refused": reasons})
    else:
        for name, count in sorted(found.jobs.items()):
            say(f"queue {name}: {count:,} jobs")
        for state, count in sorted(found.by_state.items()):
            say(f"{state}: {count:,}")
        say(f"together {format_size(found.bytes)}, about {found.seconds:g} s")
        for name, why in sorted(found.stays.items()):
            remark(f"{name} stays: {why}")
        for reason in reasons:
            remark(f"refused: {reason}")
    if reasons:
        raise SystemExit(2)  # as the move itself
