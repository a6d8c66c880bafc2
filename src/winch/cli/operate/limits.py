"""`winch limits`: look at limits, rates and tenants' weights, and set them while workers run."""

from __future__ import annotations

import click

from winch.cli.shared import text
from winch.cli.shared.known import check_known_limit, create_option
from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import Column, Table, emit_json, remark, report_each
from winch.engine.tasks.gates import limit_text


@click.group()
def limits() -> None:
    """Look at limits and rates, and set them while workers run."""


@limits.command("list")
@json_option
@store_options
def list_(options: StoreOptions) -> None:
    """List the limits that are set, in use, or have waiting jobs."""
    with opened(options) as app:
        found = app.limits.list()
    if options.as_json:
        emit_json(
            {
                "limits": [
                    {
                        "name": one.name,
                        "n": None if one.spec is None else one.spec.n,
                        "per_seconds": None
                        if one.spec is None or not one.spec.per
                        else one.spec.per / 1e6,
                        "kind": None if one.spec is None or not one.spec.per else one.spec.how,
                        "is_live": one.is_live,
                        "by": one.by,
                        "set_at": one.set_at,
                        "used": one.used,
                        "waiting": one.waiting,
                    }
                    for one in found
                ]
            }
        )
    elif found:
        table = Table(
            [
                Column("LIMIT", gives_way=True),
                Column("ALLOWED"),
                Column("IN USE", is_right=True),
                Column("WAITING", is_right=True),
                Column("SET BY", drop=1),
            ]
        )
        for one in found:
            who = one.by if one.is_live else "code" if one.spec is not None else ""
            table.add(
                text.one_line(one.name),
                limit_text(one.spec),
                f"{one.used:,}" if one.used else text.dim("-"),
                f"{one.waiting:,}" if one.waiting else text.dim("-"),
                text.one_line(who or ""),
            )
        table.show()
    else:
        remark("no limits: none is set, and no job waits at one")


@limits.command("set")
@click.argument("name")
@click.argument("value")
@create_option
@json_option
@store_options
def set_(options: StoreOptions, name: str, value: str, create: bool) -> None:
    """Set a limit (5), a rate (100/m) or a tenant's weight (3)."""
    with opened(options) as app:
        check_known_limit(app, name, create=create)
        app.limits.set(name, value)
    report_each("limits", [name], f"set to {value}", as_json=options.as_json)


@limits.command()
@click.argument("name")
@json_option
@store_options
def reset(options: StoreOptions, name: str) -> None:
    """Remove a limit set by hand; the value from the code applies again."""
    with opened(options) as app:
        app.limits.reset(name)
    report_each("limits", [name], "reset", as_json=options.as_json)
