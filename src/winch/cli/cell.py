"""`winch worker-cell`: what a worker starts to run jobs in a process of their own. Not for people."""

from __future__ import annotations

import asyncio
import os

import click

from winch.cli.load import load_app
from winch.cli.worker import start_logging
from winch.core.errors import ConfigError
from winch.engine.cell import die_with_parent, line_from_env, serve
from winch.engine.child import ignore_terminal_signals
from winch.engine.isolation import ENV


@click.command(hidden=True)
@click.option("-A", "--app", "app_spec", metavar="MODULE:APP")
@click.option("-v", "--verbose", count=True)
def worker_cell(app_spec: str | None, verbose: int) -> None:
    """One isolated process under a worker."""
    if ENV not in os.environ:
        raise ConfigError("worker-cell is started by a worker, not by hand")
    die_with_parent()
    ignore_terminal_signals()
    line = line_from_env()
    start_logging(verbose)
    app = load_app(app_spec)
    asyncio.run(serve(app.runtime, line, app.ready))
    os._exit(0)
