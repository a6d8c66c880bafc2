"""Names that a command changes something about: one that nothing has is taken for a typing error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from winch.app import App
from winch.core.errors import ConfigError, did_you_mean
from winch.engine.tasks.gates import declared
from winch.engine.tasks.options import check_queue

create_option: Callable[[Any], Any] = click.option(
    "--create", is_flag=True, help="Accept a name that has not been used before."
)


def check_known_queue(app: App, name: str, *, advice: str = "") -> None:
    """Raise ConfigError, with this advice, for a queue without jobs, settings, workers and tasks."""
    known = {"default", *(queue.name for queue in app.queues.list())}
    known.update(queue for session in app.workers.list() for queue in session.queues)
    known.update(task.options.queue for task in app.tasks)
    if check_queue(name) not in known:
        raise ConfigError(
            f"no queue is named {name!r}{did_you_mean(name, known)}: it has no jobs, settings or "
            f"workers{advice}"
        )


def check_known_limit(app: App, name: str, *, create: bool) -> None:
    """Raise ConfigError for a limit that no task has. Any tenant may have a weight."""
    if create or name.startswith("tenant:"):
        return
    known = {limit.name for limit in app.limits.list()} | set(declared(app.tasks))
    if name not in known:
        raise ConfigError(
            f"no limit is named {name!r}{did_you_mean(name, known)}; `winch limits list` shows those "
            "that workers have published. Add --create to set it before a worker does"
        )
