"""`winch worker`: a supervisor and its children."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from typing import Any

import click

from winch.app import SystemClock
from winch.cli.load import load_app
from winch.cli.text import lines, one_line
from winch.core.errors import ConfigError
from winch.core.redact import mask_text
from winch.drivers.connect import connect
from winch.engine.link import Hello
from winch.engine.order import QueueOrder
from winch.engine.settings import load
from winch.engine.supervisor import Supervisor
from winch.storage.protocol import Driver

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"


def worker_options(command: Any) -> Any:
    """The options that `worker` and its children share."""
    for option in reversed(
        [
            click.option("-A", "--app", "app_spec", metavar="MODULE:APP", help="The application."),
            click.option("--url", help="The store; overrides every other setting of it."),
            click.option("--schema", help="PostgreSQL schema of this app's tables."),
            click.option("--config", type=click.Path(), help="A configuration file."),
            click.option(
                "-Q",
                "--queues",
                default="default",
                show_default=True,
                help="Queues in strict order (a,b) or by weight (a:5,b:1).",
            ),
            click.option("-c", "--concurrency", type=int, help="Jobs at once in each process."),
            click.option("-p", "--processes", type=int, help="Worker processes."),
            click.option("--burst", is_flag=True, help="Exit when no job is ready."),
            click.option("--grace", help="How long running jobs may go on after a stop, like 30s."),
            click.option("-v", "--verbose", count=True, help="More log lines."),
        ]
    ):
        command = option(command)
    return command


@click.command()
@worker_options
def worker(
    app_spec: str | None,
    url: str | None,
    schema: str | None,
    config: str | None,
    queues: str,
    concurrency: int | None,
    processes: int | None,
    burst: bool,
    grace: str | None,
    verbose: int,
) -> None:
    """Run jobs until stopped.

    SIGTERM or Ctrl-C: no new jobs, running ones get --grace, the rest go back with no attempt spent.
    A second one stops at once. SIGUSR1 or SIGTSTP: quiet, SIGCONT: go on, SIGUSR2: stacks to the log.
    """
    start_logging(verbose)
    QueueOrder.parse(queues, random.Random())  # noqa: S311  # checked here, before a child is started
    cli = {
        "url": url,
        "schema": schema,
        "app": app_spec,
        "concurrency": concurrency,
        "processes": processes,
        "grace": grace,
    }
    # The supervisor imports no user code: what the app itself says in code only its children know.
    loaded = load(cli=cli, config=config)
    said = loaded.settings
    if said.app is None:
        load_app(None, config)
    if said.url.startswith("memory:"):
        raise ConfigError("memory:// lives inside one process; use app.worker() or app.run_worker()")
    command = [sys.executable, "-m", "winch", "worker-child"]
    for flag, value in (
        ("--app", said.app),
        ("--url", url),
        ("--schema", schema),
        ("--config", config),
        ("--queues", queues),
        ("--concurrency", concurrency),
        ("--grace", grace),
    ):
        if value is not None:
            command += [flag, str(value)]
    command += ["--burst"] * burst + ["-v"] * verbose

    async def run() -> int:
        supervisor = Supervisor(
            command,
            processes=said.processes,
            slots=MAX_SLOTS,
            grace=None if loaded.origins["grace"] == "default" else said.grace.total_seconds(),
            burst=burst,
            connect=connect_for,
        )
        return await supervisor.run()

    sys.exit(asyncio.run(run()))


# The app may set its concurrency in code, which the supervisor does not read: room for any.
MAX_SLOTS = 1024


def connect_for(hello: Hello) -> Driver:
    return connect(hello.url, clock=SystemClock(), schema=hello.schema, events=hello.events)


class SafeFormatter(logging.Formatter):
    """One record per line, without the secrets and escapes that a job's error text may hold."""

    def format(self, record: logging.LogRecord) -> str:
        record = logging.makeLogRecord(record.__dict__)
        record.msg, record.args = one_line(mask_text(record.getMessage())), None
        return super().format(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's name
        return "\n".join(lines(mask_text(super().formatException(ei))))


def start_logging(verbose: int) -> None:
    """Logs go to stderr; data to stdout."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SafeFormatter(LOG_FORMAT))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    logging.getLogger("winch").setLevel(logging.DEBUG if verbose else logging.INFO)
