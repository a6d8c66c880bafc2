"""`winch flows`: look at compositions, cancel and retry them whole."""

from __future__ import annotations

import click

from winch.areas.flows import MOST_COUNTED, FlowInfo, shown
from winch.cli.shared import text
from winch.cli.shared.options import StoreOptions, json_option, limit_option, opened, store_options
from winch.cli.shared.output import Column, Table, emit_json, remark, say
from winch.engine.flows.render import mermaid, svg

_flow_argument = click.argument("flow_id", metavar="ID")


@click.group()
def flows() -> None:
    """Look at flows, cancel and retry them."""


@flows.command("list")
@limit_option
@json_option
@store_options
def list_(options: StoreOptions, limit: int) -> None:
    """List the latest flows, newest first."""
    with opened(options) as app:
        found = app.flows.list(limit=limit)
    if options.as_json:
        emit_json({"flows": [{"id": i.id, "name": i.note.name, "kind": i.note.kind} for i in found]})
        return
    if not found:
        remark("no flows")
        return
    table = Table([Column("ID"), Column("KIND"), Column("NAME", gives_way=True), Column("MEMBERS")])
    for info in found:
        members = f"{info.members:,}{'+' if _is_capped(info) else ''}"
        table.add(info.id, text.one_line(info.note.kind), text.one_line(info.note.name), members)
    table.show()


def _is_capped(info: FlowInfo) -> bool:
    return info.note.kind == "batch" and info.members >= MOST_COUNTED


@flows.command()
@_flow_argument
@json_option
@store_options
def show(options: StoreOptions, flow_id: str) -> None:
    """Show a flow with its members as a tree."""
    with opened(options) as app:
        info = app.flows.get(flow_id)
        members = app.flows.members(flow_id)
    if options.as_json:
        emit_json(shown(info, members))
        return
    say(f"{text.bold(text.one_line(info.note.name))}  {info.state}  {text.dim(info.id)}")
    for state, number in sorted(info.counts.items()):
        say(f"  {number:>8,} {text.state(state)}")
    for name, task, number, before in info.note.nodes:
        times = f" × {number:,}" if number != 1 else ""
        after = f"  after {', '.join(before)}" if before else ""
        say(f"  {name}: {text.one_line(task)}{times}{text.dim(after)}")
    for job in members[:100]:
        say(f"  {job.id}  {text.state(job.state)}  {text.one_line(job.task)}")
    if len(members) > 100:
        remark(f"and {len(members) - 100:,} more: winch jobs list --tag flow:{info.id}")


@flows.command()
@_flow_argument
@click.option("--reason", help="Kept with the jobs.")
@json_option
@store_options
def cancel(options: StoreOptions, flow_id: str, reason: str | None) -> None:
    """Cancel all members that are not final."""
    with opened(options) as app:
        took = app.flows.cancel(flow_id, reason=reason)
    _report(options, took, "cancelled or asked to stop")


@flows.command()
@_flow_argument
@json_option
@store_options
def retry(options: StoreOptions, flow_id: str) -> None:
    """Run dead and cancelled members again, in their order."""
    with opened(options) as app:
        took = app.flows.retry(flow_id)
    _report(options, took, "ready again")


@flows.command()
@_flow_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["mermaid", "svg"]),
    default="mermaid",
    show_default=True,
    help="The form of the drawing.",
)
@json_option
@store_options
def graph(options: StoreOptions, flow_id: str, form: str) -> None:
    """Draw the shape of a flow."""
    with opened(options) as app:
        info = app.flows.get(flow_id)
    drawn = mermaid(info.note) if form == "mermaid" else svg(info.note)
    if options.as_json:
        emit_json({"id": info.id, "format": form, "graph": drawn})
    else:
        click.echo(drawn, nl=False)


def _report(options: StoreOptions, took: int, done: str) -> None:
    if options.as_json:
        emit_json({"jobs": took})
    else:
        say(f"{text.count(took, 'job')} {done}")
