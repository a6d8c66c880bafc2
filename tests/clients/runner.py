"""A runner: a process that drives one SDK by commands, a JSON document on each line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 60.0


class RunnerFailed(Exception):
    """An SDK's refusal: what the runner reports of an error of the SDK."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error))
        self.error = dict(error)


class RunnerDied(Exception):
    """The runner has ended before it answered."""


class Runner:
    """One process. Its answers are awaited; its events are kept in the order in which they came."""

    def __init__(self, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self._changed = threading.Condition()
        self._answers: dict[int, dict[str, Any]] = {}
        self._events: list[dict[str, Any]] = []
        self._last = 0
        self._has_ended = False
        self._written = threading.Lock()
        self.lines: list[str] = []
        self._stderr = (folder / f"runner-{time.monotonic_ns()}.log").open("w+b")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **env},
            text=True,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, name="runner", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                message = {"event": "noise", "line": line}
            with self._changed:
                self.lines.append(line)
                if "event" in message:
                    self._events.append(message | {"at": time.monotonic()})
                else:
                    self._answers[message["id"]] = message
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def send(self, request: Mapping[str, Any]) -> int:
        """Send a request; returns its number."""
        with self._changed:
            self._last += 1
            number = self._last
        line = json.dumps({"id": number, **request}) + "\n"
        with self._written, suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()
        return number

    def answer(self, number: int, within: float = ANSWER_SECONDS) -> Any:
        """The value of an answer. Raises RunnerFailed for an error of the SDK."""
        with self._changed:
            is_there = self._changed.wait_for(lambda: number in self._answers or self._has_ended, within)
            found = self._answers.get(number)
        if found is None:
            what = "ended" if is_there else f"did not answer within {within:.0f} s"
            raise RunnerDied(f"the runner {what}:\n{self.log_tail()}")
        if "error" in found:
            raise RunnerFailed(found["error"])
        return found.get("value")

    def ask(self, request: Mapping[str, Any], within: float = ANSWER_SECONDS) -> Any:
        return self.answer(self.send(request), within)

    def events(self) -> list[dict[str, Any]]:
        with self._changed:
            return list(self._events)

    def wait_for_events(self, fits: Callable[[list[dict[str, Any]]], bool], within: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: fits(self._events), within)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once; a process that was stopped, too."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._reader.join(10)

    def end(self) -> None:
        """Close its input, upon which a runner exits; one that does not is killed."""
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGCONT)
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                assert pipe is not None
                pipe.close()
        self._stderr.close()

    def log(self) -> str:
        self._stderr.flush()
        return Path(self._stderr.name).read_text(errors="replace")

    def log_tail(self) -> str:
        return "\n".join(self.log().splitlines()[-30:])
