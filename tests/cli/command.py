"""Run the real `winch` command, and make stores for it to look at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.cli.forked import forks
from winch import App, Retry
from winch.storage.params import NewSession

SHOP = """
    from winch import App, Retry

    app = App()

    @app.task(name="shop.add")
    def add(a: int, b: int = 0) -> int:
        return a + b

    @app.task(name="shop.mail", queue="mail", retry=Retry.fixed("1s", attempts=1))
    def mail(to: str) -> None:
        raise ValueError("mailbox of " + to + " is full")
"""


# Commands that start processes and loops of their own: no fork of a process that has imported more.
OWN_PROCESS = {"worker", "dev", "serve", "demo", "bench"}


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Command:
    """`winch` in a folder of its own, with nothing inherited from the developer's environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'winch.db'}"

    def __call__(self, *args: str, url: str | None = "", stdin: str = "", **env: str) -> Answer:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("WINCH_")} | env
        store = self.url if url == "" else url
        if store is not None:
            environment["WINCH_URL"] = store
        if OWN_PROCESS.isdisjoint(args) and not any(name.startswith("PYTHON") for name in env):
            done = forks().run(args, cwd=self.folder, env=environment, stdin=stdin, timeout=60)
        else:
            done = subprocess.run(
                [sys.executable, "-m", "winch", *args],
                cwd=self.folder,
                env=environment,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        return Answer(done.returncode, done.stdout, done.stderr)

    def shop(self) -> None:
        """Put an application next to the command: shop:app."""
        (self.folder / "shop.py").write_text(textwrap.dedent(SHOP))

    def app(self) -> App:
        """An app in this process on the same store, to prepare what the command looks at."""
        app = App(self.url)
        app.configure({"url": self.url})
        app.migrate()

        @app.task(name="shop.add")
        def add(a: int, b: int = 0) -> int:
            return a + b

        @app.task(name="shop.login")
        def login(user: str, password: str, nested: dict[str, str] | None = None) -> dict[str, str]:
            return {"session_token": "CANARY-RESULT", "user": user}

        @app.task(name="shop.mail", retry=Retry.fixed("1s", attempts=1))
        def mail(to: str) -> None:
            raise ValueError(f"mailbox of {to} is full; password=CANARY-ERROR")

        return app


def start_session(
    app: App,
    *,
    tasks: tuple[str, ...],
    queues: tuple[str, ...] = ("default",),
    release: str = "0.1.0",
    lease: timedelta = timedelta(hours=1),
    worker: str = "box-1",
    supervisor: str = "",
) -> None:
    """A live worker as the store sees one; nothing runs."""
    driver = app.ready()
    session = NewSession(
        id=app.client.draw_id(),
        worker=worker,
        host="box",
        pid=1,
        release=release,
        queues=queues,
        tasks=tasks,
        slots=4,
        lease=lease,
        supervisor=supervisor,
    )
    driver.run(driver.start_session(session))
