"""Ask before what cannot be undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from winch.cli.shared.output import is_interactive

yes_option: Callable[[Any], Any] = click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation."
)
dry_run_option: Callable[[Any], Any] = click.option(
    "--dry-run", is_flag=True, help="Only print what would be done."
)


def may_go_on(question: str, *, yes: bool) -> None:
    """Return when the answer is yes. Without a terminal no question is possible: refuse, exit 2."""
    if yes:
        return
    if not is_interactive():
        raise click.UsageError(f"{question} There is no terminal to confirm it; pass --yes")
    if not click.confirm(question, err=True):
        click.echo("nothing was done", err=True)
        click.get_current_context().exit(1)
