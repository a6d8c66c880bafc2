"""`winch worker-child`: what a supervisor starts. Not for people."""

from __future__ import annotations

import logging
import os
import random
import sys
from functools import partial
from typing import Any

import click

from winch.app import App
from winch.cli.run.worker import start_logging, worker_options
from winch.cli.shared.load import load_app
from winch.core.errors import ConfigError
from winch.core.policy.labels import check_labels
from winch.core.policy.queue_limits import queue_limits
from winch.core.version import __version__
from winch.engine.base import event_loop
from winch.engine.supervisor.child import Child, ignore_terminal_signals
from winch.engine.supervisor.embedded import process_command
from winch.engine.supervisor.messages import ENV, Link, from_env
from winch.engine.supervisor.stack_dumps import dump_on_signal
from winch.engine.supervisor.worker_options import MOST_AT_ONCE, settings_of
from winch.engine.worker.config import WorkerConfig
from winch.engine.worker.queues.order import parse_queues
from winch.engine.worker.running.process import ProcessStore


@click.command(hidden=True)
@partial(worker_options, is_child=True)
def worker_child(
    app_spec: str | None,
    url: str | None,
    schema: str | None,
    config: str | None,
    queues: str,
    burst: bool,
    labels: tuple[str, ...],
    verbose: int,
    **given: Any,
) -> None:
    """One worker process under a supervisor."""
    if ENV not in os.environ:
        raise ConfigError("worker-child is started by `winch worker`, not by hand")
    ignore_terminal_signals()
    start_logging(verbose)
    app = load_app(app_spec, config)
    cli = {"url": url, "schema": schema, "app": app_spec, **settings_of(given)}
    app.configure(cli, config=config)
    app.ready()  # an unreachable store or an old schema sets the exit code before anything runs
    code = event_loop.run(_run(app, queues, burst, labels, app_spec, config))
    logging.shutdown()
    sys.stdout.flush()
    # Not sys.exit: a handler that would not end may still hold a thread, and its claim is released.
    os._exit(code)


async def _run(
    app: App,
    queues: str,
    burst: bool,
    labels: tuple[str, ...],
    app_spec: str | None,
    config_file: str | None,
) -> int:
    settings = app.settings
    ours = from_env()
    dump_on_signal(ours.dump)
    if settings.concurrency > MOST_AT_ONCE:
        raise ConfigError(f"concurrency must be at most {MOST_AT_ONCE}, got {settings.concurrency}")
    config = WorkerConfig(
        order=parse_queues(queues, random.Random()),  # noqa: S311  # order, not a secret
        concurrency=settings.concurrency,
        lease=settings.lease,
        heartbeat=settings.heartbeat.total_seconds(),
        poll=settings.poll.total_seconds(),
        release=__version__,
        burst=burst,
        process_command=process_command(app_spec or settings.app),
        process_store=ProcessStore(settings.url, settings.schema, config_file),
        kill_after=settings.kill_after.total_seconds(),
        max_jobs=settings.max_jobs,
        max_memory=settings.max_memory,
        max_lifetime=None if settings.max_lifetime is None else settings.max_lifetime.total_seconds(),
        spool=app.spool,
        is_replaced=not burst,
        supervisor=ours.supervisor,
        labels=check_labels(labels, "--label"),
        queue_limits=queue_limits(settings.queue_limits, settings.queue_rates),
    )
    child = Child(app.driver, app.runtime, settings, config, ours.started, announces=ours.announces)
    return await child.run(await Link.open(ours.line))
