"""A real `winch worker` beside the test, on any store that processes can share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from winch import App

TASKS = """
    import os, time
    from pathlib import Path
    from winch import App

    app = App(lease="3s", heartbeat="200ms", sweep="200ms", poll="100ms")
    HERE = Path(__file__).parent

    @app.task(name="shop.pid")
    def pid() -> int:
        return os.getpid()

    @app.task(name="shop.hold", timeout=None)
    def hold(name: str) -> str:
        \"\"\"Run until the test makes a file of this name.\"\"\"
        while not (HERE / name).exists():
            time.sleep(0.02)
        return name

    @app.task(name="shop.mail", queue="mail")
    def mail() -> int:
        return os.getpid()
"""


def until(condition: Callable[[], object], what: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)


class WorkerProcess:
    """A `winch worker` and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def text(self) -> str:
        return self.log.read_text()


@contextmanager
def worker_process(
    url: str, folder: Path, *argv: str, tasks: str = TASKS, number: int = 0
) -> Iterator[WorkerProcess]:
    """`winch worker -A shop:app` with these flags; it is stopped at the end if it still runs."""
    (folder / "shop.py").write_text(textwrap.dedent(tasks))
    log = folder / f"worker-{number}.log"
    env = {key: value for key, value in os.environ.items() if not key.startswith("WINCH_")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "winch", "worker", *argv, "-A", "shop:app"],
            cwd=folder,
            env=env | {"WINCH_URL": url, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield WorkerProcess(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


class Shop:
    """An app on the store of a worker, with the same tasks, that has no worker itself."""

    def __init__(self, url: str) -> None:
        self.app = app = App(url)
        app.driver.migrate()

        @app.task(name="shop.pid")
        def pid() -> int:
            return 0

        @app.task(name="shop.hold", timeout=None)
        def hold(name: str) -> str:
            return name

        @app.task(name="shop.mail", queue="mail")
        def mail() -> int:
            return 0

        self.pid, self.hold, self.mail = pid, hold, mail
