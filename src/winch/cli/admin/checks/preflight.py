"""Whether the application's code reads what is queued."""

from __future__ import annotations

from winch.app import App
from winch.cli.admin.checks import Finding, Findings, Level
from winch.cli.shared import text
from winch.core.errors import ConfigError


def check_preflight(app: App) -> Findings:
    if not app.tasks.names:
        raise ConfigError("--preflight needs the application's code: give -A module:app")
    seen = app.preflight()
    for misfit in seen.misfits:
        yield Finding(
            Level.PROBLEM,
            "preflight",
            f"{text.count(misfit.count, 'job')} of {misfit.task} version {misfit.version}, such as "
            f"{misfit.sample}: {misfit.problem}",
            "add an upgrader (@task.upgrade), keep the task's name, or drain the queue first",
        )
    if not seen.misfits:
        yield Finding(
            Level.OK, "preflight", f"this code reads all {text.count(seen.read, 'queued job')}"
        )
