"""What a handler of a worker over HTTP gets: its job, and what it reports of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from winch.remote.worker import RemoteWorker

# The headers of a trace (W3C).
TRACE = ("traceparent", "tracestate")

Why = Literal["cancel", "lost", "stop", "timeout"]


class Stopped(BaseException):
    """Raised by `RemoteContext.check` in a handler that should stop. Let it pass: the worker then ends
    the job as cancelled, or gives it back when the worker itself stops.

    No `Exception`, so that a handler's `except Exception` does not hold it.
    """


class RemoteContext:
    """The job that a handler runs, as its first argument."""

    def __init__(self, worker: RemoteWorker, job: Mapping[str, Any]) -> None:
        self._worker = worker
        self.job: Mapping[str, Any] = job
        self.id: str = job["id"]
        self.attempt: int = job["attempt"]
        self.last_checkpoint: Any = job["checkpoint"]
        self.headers: Mapping[str, str] = job["headers"]
        self.timeout: float | None = job.get("timeout_seconds")
        """How many seconds the handler may run."""
        self._began = time.monotonic()
        self._stopped = threading.Event()
        self._has_ended = False
        self.stopped_by: Why | None = None
        """Why the handler should stop: "cancel" was requested, the claim is "lost", the worker does
        "stop", or the "timeout" is over."""

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop; `stopped_by` has the reason."""
        return self._stopped.is_set()

    def stop(self, why: Why) -> None:
        """Ask the handler to stop."""
        if not self._stopped.is_set():
            self.stopped_by = why
            self._stopped.set()

    def is_late(self, by: float = 0.0) -> bool:
        """Whether the timeout was over so many seconds ago."""
        return self.timeout is not None and time.monotonic() - self._began > self.timeout + by

    def ends(self) -> bool:
        """True for the first end of the job: by its handler, or by the timeout."""
        with self._worker.lock:
            had, self._has_ended = self._has_ended, True
        return not had

    def check(self) -> None:
        """Raise Stopped where the handler should stop."""
        if self._stopped.is_set():
            raise Stopped(self.stopped_by)

    def wait(self, seconds: float) -> bool:
        """Sleep; True as soon as the handler should stop."""
        return self._stopped.wait(seconds)

    def progress(self, value: Any) -> None:
        """Report progress: any JSON data."""
        self._note(progress=value)

    def checkpoint(self, value: Any) -> None:
        """Store what the next attempt finds in `last_checkpoint`."""
        self._note(checkpoint=value)

    def log(self, line: str) -> None:
        """Add to the job's log."""
        self._note(log=line)

    def enqueue(self, jobs: Sequence[Mapping[str, Any]], name: str = "") -> list[str]:
        """Enqueue children; a repeat and a later attempt store none of them twice. Their ids."""
        body = {"parent": self.ref, "jobs": [self._traced(job) for job in jobs], "name": name}
        return [one["id"] for one in self._worker.ask("/children", body)["jobs"]]

    def _traced(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The child in the trace of this job, unless it names another one."""
        headers = dict(job.get("headers") or {})
        if "traceparent" not in headers:
            headers |= {name: self.headers[name] for name in TRACE if name in self.headers}
        return {**job, "headers": headers}

    @property
    def ref(self) -> dict[str, str]:
        """The proof of the claim."""
        return {"id": self.id, "token": self.job["token"]}

    def _note(self, **fields: Any) -> None:
        [answer] = self._worker.ask("/notes", {"notes": [{**self.ref, **fields}]})["answers"]
        if answer["answer"] == "lost":
            self.stop("lost")
