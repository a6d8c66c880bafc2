"""`winch isolated-child`: what a worker starts to run jobs in a process of their own. Not for people."""

from __future__ import annotations

import asyncio
import os

import click

from winch.cli.run.worker import start_logging
from winch.cli.shared.load import load_app
from winch.core.errors import ConfigError
from winch.engine.supervisor.child import ignore_terminal_signals
from winch.engine.supervisor.isolated_child import die_with_parent, from_env, serve
from winch.engine.worker.running.process import ENV
from winch.storage.protocol import Driver


@click.command(hidden=True)
@click.option("-A", "--app", "app_spec", metavar="MODULE:APP")
@click.option("-v", "--verbose", count=True)
def isolated_child(app_spec: str | None, verbose: int) -> None:
    """One isolated process under a worker."""
    if ENV not in os.environ:
        raise ConfigError("isolated-child is started by a worker, not by hand")
    die_with_parent()
    ignore_terminal_signals()
    line, store = from_env()
    start_logging(verbose)
    app = load_app(app_spec, store.config)
    app.configure({"url": store.url, "schema": store.schema}, config=store.config)

    def reach() -> Driver:
        if store.url.startswith("memory:"):
            raise ConfigError(
                "memory:// lives inside one process, so an isolated handler cannot reach the store; "
                "use sqlite:// or another store"
            )
        return app.ready()

    asyncio.run(serve(app.runtime, line, reach))
    os._exit(0)
