"""`winch worker`: a supervisor and its children."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import signal
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from winch.app import SystemClock
from winch.cli.shared.load import load_app
from winch.cli.shared.text import lines, one_line
from winch.core.errors import ConfigError
from winch.core.values.ip_address import is_loopback
from winch.core.values.redact import mask_text
from winch.drivers.connect import connect
from winch.engine.base.settings import load
from winch.engine.observe.alerts import alerts_of
from winch.engine.observe.health_server import HealthPort
from winch.engine.observe.heartbeat_file import keep_heartbeat_file
from winch.engine.observe.worker_metrics import WorkerMetrics
from winch.engine.supervisor.messages import Hello
from winch.engine.supervisor.reload import app_folder, changes
from winch.engine.supervisor.supervisor import Supervisor
from winch.engine.worker.queue_order import parse_queues
from winch.storage.protocol import Driver

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"
SHORT_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
# The environment variable of the style; children and cells inherit it.
LOG_STYLE = "WINCH_LOG_STYLE"
# What a scraper must show to read a worker's metrics from another machine.
METRICS_TOKEN = "WINCH_METRICS_TOKEN"


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
                help="Queues in strict order (a,b), by weight (a:5,b:1), or all but some ('*,-slow').",
            ),
            click.option(
                "-c", "--concurrency", type=int, help="Jobs that each process runs at the same time."
            ),
            click.option("-p", "--processes", type=int, help="Worker processes."),
            click.option("--burst", is_flag=True, help="Exit when no job is ready."),
            click.option("--grace", help="How long running jobs may continue after a stop, like 30s."),
            click.option("--max-jobs", type=int, help="Replace a process after this many jobs."),
            click.option("--max-memory", help="Replace a process that uses more memory, like 512MB."),
            click.option("--max-lifetime", help="Replace a process after this time, like 1h (±10 %)."),
            click.option("-v", "--verbose", count=True, help="More log lines."),
        ]
    ):
        command = option(command)
    return command


@click.command()
@worker_options
@click.option("--reload", is_flag=True, help="Replace processes when the app's code changes.")
@click.option(
    "--health-port",
    type=click.IntRange(0, 65535),
    help="Port of /livez, /readyz and /metrics; 0 picks a free one.",
)
@click.option(
    "--health-host", default="127.0.0.1", show_default=True, help="The address of --health-port."
)
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
    max_jobs: int | None,
    max_memory: str | None,
    max_lifetime: str | None,
    verbose: int,
    reload: bool,
    health_port: int | None,
    health_host: str,
) -> None:
    """Run jobs until stopped.

    On SIGTERM or Ctrl-C it claims no new jobs, gives running jobs --grace, and returns the rest with no
    attempt spent. A second signal stops it at once. SIGUSR1 or SIGTSTP stops claiming, SIGCONT starts it
    again, SIGUSR2 writes stacks to the log.
    """
    start_logging(verbose)
    run_worker(
        {
            "app": app_spec,
            "url": url,
            "schema": schema,
            "queues": queues,
            "concurrency": concurrency,
            "processes": processes,
            "grace": grace,
            "max_jobs": max_jobs,
            "max_memory": max_memory,
            "max_lifetime": max_lifetime,
        },
        config=config,
        verbose=verbose,
        burst=burst,
        reload=reload,
        health=None if health_port is None else (health_host, health_port),
    )


def run_worker(
    flags: Mapping[str, Any],
    *,
    config: str | None,
    verbose: int,
    burst: bool = False,
    reload: bool = False,
    health: tuple[str, int] | None = None,
) -> None:
    """Run a supervisor with these flags to its end, and exit with its code."""
    cli = {name: value for name, value in flags.items() if name != "queues"}
    parse_queues(flags["queues"], random.Random())  # noqa: S311  # checked before a child is started
    # The supervisor imports no user code: only its children know the settings in the app's code.
    loaded = load(cli=cli, config=config)
    settings = loaded.settings
    if settings.app is None:
        load_app(None, config)
    if settings.url.startswith("memory:"):
        raise ConfigError("memory:// lives inside one process; use app.worker() or app.run_worker()")
    command = [sys.executable, "-m", "winch", "worker-child"]
    for name, value in {**flags, "app": settings.app, "config": config}.items():
        if value is not None and name != "processes":
            command += [f"--{name.replace('_', '-')}", str(value)]
    command += ["--burst"] * burst + ["-v"] * verbose
    folder = app_folder(settings.app or "", Path.cwd())
    if reload:
        logging.getLogger("winch").info("replacing processes when Python files in %s change", folder)

    async def run() -> int:
        metrics = WorkerMetrics()
        port = None if health is None else await _health_port(metrics, *health)
        supervisor = Supervisor(
            command,
            processes=settings.processes,
            slots=MAX_SLOTS,
            grace=None if loaded.origins["grace"] == "default" else settings.grace.total_seconds(),
            burst=burst,
            connect=connect_for,
            changes=functools.partial(changes, folder) if reload else None,
            metrics=metrics,
            more=lambda driver: [alerts_of(driver, settings)],
        )
        beating = asyncio.create_task(
            keep_heartbeat_file(metrics.is_turning), name="winch heartbeat file"
        )
        try:
            return await supervisor.run()
        finally:
            _be_deaf()
            beating.cancel()
            await asyncio.wait([beating])
            if port is not None:
                await port.stop()

    sys.exit(asyncio.run(run()))


def _be_deaf() -> None:
    """All has ended: one more stop signal would only replace the exit code."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


async def _health_port(metrics: WorkerMetrics, host: str, port: int) -> HealthPort:
    served = HealthPort(
        live=metrics.live,
        ready=metrics.ready,
        metrics=metrics.render,
        is_local=is_loopback(host),
        metrics_token=os.environ.get(METRICS_TOKEN) or None,
    )
    found = await served.start(host, port)
    logging.getLogger("winch").info("probes and metrics on http://%s:%d", host, found)
    return served


# The app may set its concurrency in code, which the supervisor does not read: room for any, and for the
# jobs that collecting calls run at once.
MAX_SLOTS = 8192


def connect_for(hello: Hello) -> Driver:
    return connect(hello.url, clock=SystemClock(), schema=hello.schema, events=hello.events)


class SafeFormatter(logging.Formatter):
    """One record per line, without the secrets and escapes that a job's error text may hold. Times have
    their offset, so that logs of several machines can be read together."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  # logging's name
        if datefmt is not None:
            return super().formatTime(record, datefmt)
        return (
            datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(timespec="milliseconds")
        )

    def format(self, record: logging.LogRecord) -> str:
        record = logging.makeLogRecord(record.__dict__)
        record.msg, record.args = one_line(mask_text(record.getMessage())), None
        if record.exc_text:
            record.exc_text = "\n".join(lines(mask_text(record.exc_text)))
        return super().format(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's name
        return "\n".join(lines(mask_text(super().formatException(ei))))


class JsonFormatter(SafeFormatter):
    """One JSON object per line, for programs that read logs; with the trace a line belongs to, where
    the application has OpenTelemetry."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": mask_text(record.getMessage()),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        elif record.exc_text:
            fields["error"] = mask_text(record.exc_text)
        trace = sys.modules.get("opentelemetry.trace")
        if trace is not None:
            here = trace.get_current_span().get_span_context()
            if here.is_valid:
                fields |= {
                    "trace_id": format(here.trace_id, "032x"),
                    "span_id": format(here.span_id, "016x"),
                }
        return msgspec.json.encode(fields).decode()


def formatter() -> logging.Formatter:
    """By $WINCH_LOG_STYLE: short for a terminal, json for programs."""
    match os.environ.get(LOG_STYLE):
        case "short":
            return SafeFormatter(SHORT_FORMAT, "%H:%M:%S")
        case "json":
            return JsonFormatter()
        case _:
            return SafeFormatter(LOG_FORMAT)


def start_logging(verbose: int) -> None:
    """Logs go to stderr; data to stdout."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    logging.getLogger("winch").setLevel(logging.DEBUG if verbose else logging.INFO)
