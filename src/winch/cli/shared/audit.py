"""`winch audit`: the actions of people and programs. Those of the command line leave the same lines."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click
import msgspec

from winch.app import App
from winch.cli.shared import text
from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import Column, Table, emit_json, remark
from winch.core.errors import ConfigError
from winch.core.values.duration import Duration
from winch.engine.client.audit import AuditLine
from winch.engine.client.audit import noted as line_about


@click.command()
@click.option("--actor", metavar="NAME", help="Only actions of this user, token or program.")
@click.option("--action", metavar="WORDS", help="Only this action, like 'pause queue'.")
@click.option("--since", metavar="WHEN", help="An age like 2d, or a time like 2026-01-31T12:00Z.")
@click.option(
    "-n", "--limit", default=50, type=click.IntRange(1, 10_000), help="At most this many lines."
)
@json_option
@store_options
def audit(
    options: StoreOptions, actor: str | None, action: str | None, since: str | None, limit: int
) -> None:
    """Show the audit log, newest first."""
    begin = None if since is None else _moment(since)
    with opened(options) as app:
        lines = app.audit.list(actor=actor, action=action, since=begin, limit=limit)
    if options.as_json:
        emit_json({"lines": [msgspec.to_builtins(line) for line in lines]})
    elif lines:
        _table(lines).show()
    else:
        remark("no lines")


def _table(lines: list[AuditLine]) -> Table:
    table = Table(
        [
            Column("WHEN"),
            Column("ACTOR", gives_way=True),
            Column("ACTION"),
            Column("TARGET", gives_way=True),
            Column("VIA", drop=2),
            Column("ORIGIN", drop=1),
            Column("DETAIL", gives_way=True, drop=3),
        ]
    )
    for line in lines:
        detail = " ".join(f"{key}={value}" for key, value in line.detail.items())
        cells = (line.who, line.action, line.target, line.via, line.origin, detail)
        table.add(text.stamp(line.at), *(text.one_line(cell) for cell in cells))
    return table


def _moment(since: str) -> Duration | datetime:
    """A duration as it is, a moment in ISO 8601 as a datetime."""
    if "T" not in since and "-" not in since:
        return since
    try:
        moment = datetime.fromisoformat(since)
    except ValueError as error:
        raise ConfigError(
            f"--since must be a time ago or a moment in ISO 8601, got {since!r}"
        ) from error
    return moment if moment.tzinfo is not None else moment.astimezone()


def noted(app: App, action: str, target: str, **detail: Any) -> None:
    """Add a line about what was just done, where no part of the library does it."""
    app.client.run(line_about(app.driver, action, target, **detail))
