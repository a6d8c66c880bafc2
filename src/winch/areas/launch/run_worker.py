"""`app.run_worker(…)`: in this process where that is enough, else under a supervisor."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from winch.areas.launch.supervised import supervise
from winch.core.errors import ConfigError
from winch.engine.base.settings import Loaded
from winch.engine.supervisor.embedded import EmbeddedWorker, Host, process_command
from winch.engine.supervisor.worker_options import (
    WorkerOptions,
    check_options,
    needs_supervisor,
    settings_of,
)
from winch.storage.protocol import Driver


class Runnable(Host, Protocol):
    """What is needed of an app."""

    def ready(self) -> Driver: ...


def run_worker(
    app: Runnable,
    spec: str | None,
    given: WorkerOptions,
    load: Callable[[Mapping[str, Any]], Loaded],
) -> int:
    """Run a worker of this app to its end. `spec`: how another process imports the app. `load`: the
    settings with values of the command line."""
    check_options(given)
    if needs_supervisor(given):
        return _run_processes(spec, given, load)
    app.ready()
    asyncio.run(EmbeddedWorker(app, given, process_command(spec)).run_until_stopped())
    return 0


def _run_processes(
    spec: str | None, given: Mapping[str, Any], load: Callable[[Mapping[str, Any]], Loaded]
) -> int:
    if spec is None:
        raise ConfigError(
            "these options need worker processes, which have to import the app: define it at the top of "
            'an importable module, or set app.import_path = "shop.jobs:make_app()"'
        )
    loaded = load(settings_of(given))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return supervise(loaded, given, source={"app": spec})
    finally:
        for number, handler in before.items():  # a supervisor ignores them from its end on
            signal.signal(number, handler)
