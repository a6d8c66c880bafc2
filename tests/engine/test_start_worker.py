"""Messages name the command by which people start a worker of their app."""

from __future__ import annotations

import pytest

from winch import App


@pytest.mark.parametrize(
    "command, start",
    [("winch", "winch worker -A module:app"), ("manage.py winch", "manage.py winch worker")],
)
def test_why_names_the_command_of_the_framework(command: str, start: str) -> None:
    app = App("memory://")
    app.command = command

    @app.task(queue="mail")
    def send() -> None: ...

    job = send.enqueue()
    assert job.why() == f"No worker serves its queue 'mail'. Start one: {start} -Q mail"
    assert app.start_worker == start
    app.close()
