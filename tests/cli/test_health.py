"""`winch health --max-age`: a probe that reads the heartbeat file and leaves the store alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.redis_servers import RedisServer

SHOP = """
import winch
app = winch.App()

@app.task
def add() -> None: ...
"""


class Machine:
    """A machine of its own as far as files go: one temporary folder for all that runs there."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "shop.py").write_text(SHOP)
        (folder / "tmp").mkdir()
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("WINCH_")}
        self.env = {**kept, "TMPDIR": str(folder / "tmp"), "WINCH_URL": url, "WINCH_APP": "shop:app"}

    def health(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "winch", "health", *options],
            cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    @contextmanager
    def running(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "winch", *command],
            cwd=self.folder, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(timeout=30)

    def until_well(self, *options: str) -> None:
        deadline = time.monotonic() + 30
        while (found := self.health(*(options or ("--max-age", "30")))).returncode:
            assert time.monotonic() < deadline, found.stdout
            time.sleep(0.1)


@pytest.mark.parametrize("command", [("worker",), ("serve", "--port", "0")])
def test_a_process_is_well_while_it_turns(command: tuple[str, ...], tmp_path: Path) -> None:
    machine = Machine(tmp_path, f"sqlite:///{tmp_path / 'winch.db'}")
    before = machine.health("--max-age", "30")
    assert before.returncode == 1
    assert "no live worker or server" in before.stdout
    with machine.running(*command) as process:
        machine.until_well()
        assert f"{process.pid} turned" in machine.health("--max-age", "30").stdout
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        stopped = machine.health("--max-age", "1")
        assert stopped.returncode == 1
        assert f"fail  process  {process.pid} turned" in stopped.stdout
    assert machine.health("--max-age", "30").returncode == 1
    assert list((tmp_path / "tmp").rglob("*.heartbeat")) == []


@pytest.mark.servers
def test_an_unreachable_store_does_not_make_a_worker_unhealthy(tmp_path: Path) -> None:
    with RedisServer() as server:
        machine = Machine(tmp_path, server.url)
        with machine.running("worker"):
            machine.until_well("--workers", "1")  # one that has not started yet ends without its store
            server.stop()
            time.sleep(4)
            assert machine.health().returncode == 1, "the store is away"
            assert machine.health("--max-age", "3").returncode == 0
            server.start()


def test_a_file_of_a_dead_process_counts_for_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, f"sqlite:///{tmp_path / 'winch.db'}")
    with machine.running("worker") as process:
        machine.until_well()
        process.kill()
        process.wait()
        assert list((tmp_path / "tmp").rglob("*.heartbeat"))
        assert machine.health("--max-age", "30").returncode == 1


def test_both_questions_at_once_are_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path, f"sqlite:///{tmp_path / 'winch.db'}")
    refused = machine.health("--max-age", "30", "--workers", "1")
    assert refused.returncode == 2
    assert "pass one of them" in refused.stderr
