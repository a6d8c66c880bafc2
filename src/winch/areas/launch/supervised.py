"""Worker processes under a supervisor: `winch worker`, and `app.run_worker(processes=4)`."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from winch.core.errors import ConfigError
from winch.core.policy.labels import check_labels
from winch.core.policy.queue_limits import pairs_text
from winch.core.values.ip_address import is_loopback
from winch.drivers.connect import connect
from winch.engine.base.settings import Loaded
from winch.engine.base.system_clock import SystemClock
from winch.engine.observe.alerts import alerts_of
from winch.engine.observe.busy_report import BusyReport, sender
from winch.engine.observe.health_server import HealthPort
from winch.engine.observe.heartbeat_file import keep_heartbeat_file
from winch.engine.observe.worker_metrics import WorkerMetrics
from winch.engine.supervisor.messages import Hello
from winch.engine.supervisor.reload import app_folder, changes
from winch.engine.supervisor.supervisor import Supervisor
from winch.engine.supervisor.worker_options import queues_text, worker_flags
from winch.engine.worker.queues.order import parse_queues
from winch.storage.protocol import Driver

# What a scraper must show to read a worker's metrics from another machine.
METRICS_TOKEN = "WINCH_METRICS_TOKEN"
# The app may set its concurrency in code, which the supervisor does not read: room for any, and for the
# jobs that collecting calls run at once.
MAX_SLOTS = 8192


def supervise(
    loaded: Loaded,
    given: Mapping[str, Any],
    *,
    source: Mapping[str, str | None],
    verbose: int = 0,
) -> int:
    """Run a supervisor with these options of a worker to its end, and return its exit code.

    `source` has the flags by which a child finds the app and its settings."""
    settings = loaded.settings
    queues = queues_text(given.get("queues") or worker_flags()["queues"].default or "")
    parse_queues(queues, random.Random())  # noqa: S311  # checked before a child is started
    if settings.url.startswith("memory:"):
        raise ConfigError("memory:// lives inside one process; use app.worker() or app.run_worker()")
    command = child_command({**given, "queues": queues}, source, verbose)
    folder = app_folder(source.get("app") or "", Path.cwd())
    send = None if given.get("report_busy") is None else sender(given["report_busy"])
    is_reloading, port = bool(given.get("reload")), given.get("health_port")
    if is_reloading:
        logging.getLogger("winch").info("replacing processes when Python files in %s change", folder)

    async def run() -> int:
        metrics = WorkerMetrics()
        host = given.get("health_host") or worker_flags()["health_host"].default or ""
        health = None if port is None else await _health_port(metrics, host, port)
        supervisor = Supervisor(
            command,
            processes=settings.processes,
            slots=MAX_SLOTS,
            grace=None if loaded.origins["grace"] == "default" else settings.grace.total_seconds(),
            burst=bool(given.get("burst")),
            replaces=not given.get("no_replace"),
            connect=_connect_for,
            changes=functools.partial(changes, folder) if is_reloading else None,
            metrics=metrics,
            more=lambda driver: [
                alerts_of(driver, settings),
                *([] if send is None else [BusyReport(metrics.held, send)]),
            ],
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
            if health is not None:
                await health.stop()

    return asyncio.run(run())


def child_command(
    given: Mapping[str, Any], source: Mapping[str, str | None], verbose: int = 0
) -> list[str]:
    """How the supervisor starts a child with these options."""
    command = [sys.executable, "-m", "winch", "worker-child"]
    for name, text in source.items():
        if text is not None:
            command += [f"--{name}", text]
    for name, flag in worker_flags().items():
        value = given.get(name)
        if not flag.is_childs or value is None or value is False or name == "processes":
            continue
        if flag.is_repeated:
            pairs = check_labels(value, name).items()
            command += [word for pair in pairs for word in (flag.names[-1], "=".join(pair))]
            continue
        command += flag.names[-1:] if flag.kind is bool else [flag.names[-1], _text(value)]
    return command + ["-v"] * verbose


def _text(value: object) -> str:
    """A value of an option as the command line has it."""
    if isinstance(value, Mapping):
        return pairs_text(value)
    seconds = getattr(value, "total_seconds", None)
    return str(value) if seconds is None else f"{seconds():f}s"


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


def _connect_for(hello: Hello) -> Driver:
    return connect(hello.url, clock=SystemClock(), schema=hello.schema, events=hello.events)
