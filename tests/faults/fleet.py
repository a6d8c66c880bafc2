"""Real worker processes, and what is done to them. Only processes started here are ever signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from lab.history import ENV, Recorder

ROOT = Path(__file__).resolve().parents[2]


def clean_environment() -> dict[str, str]:
    """The environment without Winch's settings, but for the switch of the fast paths: `make test-all`
    runs these tests both ways."""
    kept = {name for name in os.environ if not name.startswith("WINCH_")} | {"WINCH_FAST"}
    return {name: value for name, value in os.environ.items() if name in kept}


def until(
    condition: Callable[[], bool],
    seconds: float,
    what: str,
    more: Callable[[], str] = str,
    step: float = 0.01,
) -> float:
    """Wait until `condition` holds; returns how long that took. Fails with the name of the condition,
    at the end too: of a long message often only the end is kept."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            waited = f"waited {seconds:g} s for {what}"
            raise AssertionError(f"{waited}\n{more()}\n{waited}")
        time.sleep(step)
    return time.monotonic() - began


class Worker:
    """One `winch worker`: a supervisor and its children."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, recorder: Recorder) -> None:
        self.process = process
        self.log = log
        self._recorder = recorder
        self._seen: dict[int, psutil.Process] = {process.pid: psutil.Process(process.pid)}

    @property
    def pid(self) -> int:
        return self.process.pid

    def children(self, of: int | None = None, *, recursive: bool = False) -> list[int]:
        """The pids of the supervisor's children (or of another one's) that are there now."""
        try:
            found = psutil.Process(of or self.pid).children(recursive=recursive)
        except psutil.NoSuchProcess:
            return []
        self._seen.update({child.pid: child for child in found})
        return [child.pid for child in found if _is_alive(child)]

    def pids(self) -> list[int]:
        """The supervisor, its children, and theirs (isolated jobs run in processes of their own)."""
        return [self.pid, *self.children(recursive=True)]

    def all_pids(self) -> list[int]:
        """Every process of this worker that was ever seen."""
        self.children(recursive=True)
        return list(self._seen)

    def is_gone(self) -> bool:
        """Whether the supervisor and all its children have ended."""
        self.process.poll()
        return not any(_is_alive(process) for process in self._seen.values())

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    # -- what is done to it ------------------------------------------------------------------------

    def kill_child(self, pid: int) -> None:
        self._recorder.nemesis("kill", [pid, *self.children(pid, recursive=True)], note="child")
        os.kill(pid, signal.SIGKILL)

    def kill_supervisor(self) -> None:
        """The children notice, and end too: what happens to them from now on is our doing."""
        pids = self.pids()
        self._recorder.nemesis("kill", pids, note="supervisor")
        os.kill(self.pid, signal.SIGKILL)

    def kill_all(self) -> None:
        pids = self.pids()
        self._recorder.nemesis("kill", pids, note="supervisor and children")
        # Stopped first, so that none of them sees another die.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, number)

    def stop(self) -> None:
        """SIGSTOP to all of its processes: alive, and doing nothing. Not in the middle of a write to a
        file: no other process could write then, and the rest of the fleet would block too."""
        pids = self.pids()
        self._recorder.nemesis("stop", pids)
        while True:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            if not _hold_a_file(pids):
                return
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.005)

    def go_on(self, head_start: float = 0.0) -> None:
        """The children first. `head_start`: so many seconds before the supervisor, which learns from its
        next heartbeat that the sessions have ended and then stops their handlers."""
        pids = self.pids()
        for pid in reversed(pids):
            if pid == self.pid:
                time.sleep(head_start)
            os.kill(pid, signal.SIGCONT)
        self._recorder.nemesis("continue", pids, count=0)

    def quiet(self) -> None:
        """Let it claim nothing until `wake`; it still beats and sweeps."""
        os.kill(self.pid, signal.SIGUSR1)

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def term(self, *, is_fault: bool = True) -> None:
        self._recorder.nemesis("term", self.pids(), count=int(is_fault))
        os.kill(self.pid, signal.SIGTERM)

    def term_again(self) -> None:
        """A second signal: its handlers are interrupted at once."""
        self._recorder.nemesis("hurry", self.pids(), count=0)
        os.kill(self.pid, signal.SIGTERM)

    def wait(self, seconds: float) -> int:
        """Wait for its end; returns the exit code, which is written down."""
        known = self.all_pids()
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end within {seconds:g} s\n{self.text()}") from None
        self._recorder.exited(self.pid, code, known[1:])
        return code

    def end(self) -> None:
        """Kill whatever is left of it."""
        self.children(recursive=True)
        for process in self._seen.values():
            if _is_alive(process):
                process.kill()
        self.process.wait(10)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Fleet:
    """The workers (and other helpers) of one scenario."""

    def __init__(
        self,
        folder: Path,
        recorder: Recorder,
        env: Mapping[str, str],
        app: str = "tests.faults.apps:app",
    ) -> None:
        self._folder = folder
        self._recorder = recorder
        self._env = dict(env)
        self._app = app
        self.workers: list[Worker] = []
        self._others: list[subprocess.Popen[bytes]] = []

    def worker(
        self,
        *,
        queues: str = "default",
        concurrency: int = 4,
        processes: int = 1,
        grace: str = "5s",
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Worker:
        """Start a `winch worker`."""
        log = self._folder / f"worker-{len(self.workers)}.log"
        argv = ["-A", self._app, "-Q", queues, "--grace", grace]
        argv += ["-c", str(concurrency), "-p", str(processes), *flags]
        process = self._popen(["-m", "winch", "worker", *argv], log, env)
        worker = Worker(process, log, self._recorder)
        self.workers.append(worker)
        return worker

    def helper(self, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a Python program of ours."""
        log = self._folder / f"helper-{len(self._others)}.log"
        process = self._popen(list(argv), log, env)
        self._others.append(process)
        return process

    def _popen(
        self, argv: list[str], log: Path, env: Mapping[str, str] | None
    ) -> subprocess.Popen[bytes]:
        environment = clean_environment()
        environment |= {ENV: str(self._recorder.folder), "PYTHONUNBUFFERED": "1"}
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, *argv],
                cwd=ROOT,
                env=environment | self._env | dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def logs(self) -> str:
        """The end of every log, for a failure's message."""
        found = sorted(self._folder.glob("*.log"))
        return "\n".join(
            f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-40:])
            for log in found
        )

    def ended(self) -> dict[str, int]:
        """The processes that are not there any more, with their exit codes."""
        workers = {f"worker-{n}": worker.process for n, worker in enumerate(self.workers)}
        helpers = {f"helper-{n}": process for n, process in enumerate(self._others)}
        codes = {name: process.poll() for name, process in (workers | helpers).items()}
        return {name: code for name, code in codes.items() if code is not None}

    def end(self) -> None:
        for worker in self.workers:
            worker.end()
        for other in self._others:
            if other.poll() is None:
                other.kill()
            other.wait(10)


def _hold_a_file(pids: Iterable[int]) -> bool:
    """Whether one of these processes holds a file locked for writing."""
    wanted = {str(pid) for pid in pids}
    locks = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(lock[1] == "POSIX" and lock[3] == "WRITE" and lock[4] in wanted for lock in locks)
