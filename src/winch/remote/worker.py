"""A worker over HTTP: one session for its life, handlers in threads, ends in batches.

Three threads talk to the server: the one that claims, the one that sends how jobs ended, and the heart.
docs/protocol/wire.md has what each of them may repeat.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from winch.core.outcome import Cancel, Directive, Discard, RetryAfter, Snooze
from winch.remote.client import GREATEST_PAUSE, RemoteClient, RemoteError
from winch.remote.context import RemoteContext, Stopped, Why

log: logging.Logger = logging.getLogger("winch.remote")
_rng = random.Random()  # noqa: S311  # pauses, not secrets

MOST_IN_BATCH = 200
POLL = 5.0
# Seconds after a claim that failed, doubled for each further one, and drawn from the upper half.
FIRST_CLAIM_PAUSE = 0.5
# How long handlers that were asked to stop have until their job, or the session, ends without them.
STOP_SECONDS = 1.0
# The clock of timeouts.
LOOK_EVERY = 0.2

Handler = Callable[..., Any]


class RemoteWorker:
    """Claims jobs of these queues and runs them in `slots` threads until it is stopped."""

    def __init__(
        self,
        client: RemoteClient,
        queues: Sequence[str],
        *,
        slots: int = 4,
        lease: str = "30s",
        name: str | None = None,
    ) -> None:
        self._client = client
        self._about = {
            "worker": name or f"{socket.gethostname()}-{os.getpid()}",
            "queues": list(queues),
            "slots": slots,
            "lease": lease,
        }
        self._slots = slots
        self._handlers: dict[str, Handler] = {}
        self._contracts: list[dict[str, Any]] = []
        self.lock: threading.Lock = threading.Lock()
        self._running: dict[tuple[str, str], RemoteContext] = {}
        self._claiming: set[str] = set()
        self._free = threading.Semaphore(slots)
        self._ends: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._stopping = threading.Event()
        self._quiet = threading.Event()
        self._over = threading.Event()
        self._claimer: int | None = None  # the thread whose claim waits
        self._key = ""
        self._beat_every = 1.0
        self._grace = 0.0
        self._answers: list[dict[str, str]] = []
        self._met: dict[str, None] = {}

    def task(
        self,
        name: str,
        *,
        schema: Mapping[str, Any] | None = None,
        queue: str | None = None,
        attempts: int | None = None,
    ) -> Callable[[Handler], Handler]:
        """Register a handler: it gets the context and the job's arguments by name.

        With `schema`, the JSON Schema of the arguments, producers can enqueue the task without its code
        once this worker has started: to `queue`, for so many `attempts`.
        """
        if schema is not None:
            more = {"queue": queue, "attempts": attempts}
            given = {key: value for key, value in more.items() if value is not None}
            self._contracts.append({"task": name, "schema": dict(schema), **given})
        elif queue is not None or attempts is not None:
            raise ValueError(f"task {name!r}: queue and attempts need a schema")

        def register(function: Handler) -> Handler:
            self._handlers[name] = function
            return function

        return register

    def stop(self) -> None:
        """Claim nothing more; `run` returns when running jobs have ended. From any thread, or a signal
        handler."""
        self._stopping.set()
        self._cut_claim()

    def _cut_claim(self) -> None:
        """End a claim that waits. What the server takes meanwhile goes back with the next heartbeat."""
        claimer = self._claimer
        if claimer is not None and claimer != threading.get_ident():
            self._client.interrupt(claimer)

    def run(self, *, burst: bool = False, grace: float = 30.0) -> None:
        """Work until stopped; with `burst` until the queues are empty. Running jobs get `grace` seconds
        at the end, then they go back to their queues."""
        self._grace = grace
        self._register("")
        threads = [
            threading.Thread(target=self._send_ends, name="winch ends", daemon=True),
            threading.Thread(target=self._beat, name="winch heart", daemon=True),
            threading.Thread(target=self._watch_timeouts, name="winch clock", daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            self._claim_until_stopped(burst)
            began = time.monotonic()
            while self._count() and time.monotonic() - began < self._grace:
                time.sleep(0.02)
        finally:
            for context in self._contexts():
                context.stop("stop")
            until = time.monotonic() + STOP_SECONDS
            while self._count() and time.monotonic() < until:
                time.sleep(0.02)
            self._over.set()
            self._ends.put(None)
            for thread in threads:
                thread.join(timeout=10)
            try:
                self._client.ask("DELETE", f"/sessions/{self._key}", patience=2)
            except RemoteError as error:
                if error.code != "session-ended":
                    log.warning("the session ends with its lease: %s", error)
            self._client.close()

    # -- the session -------------------------------------------------------------------------------

    def _register(self, lost: str) -> None:
        with self.lock:
            if self._key != lost:
                return  # another thread has registered meanwhile
            for context in self._running.values():
                context.stop("lost")
            self._running.clear()
            key = str(uuid.uuid4())
            about = {**self._about, "key": key, "tasks": sorted(self._handlers)}
            about["contracts"] = self._contracts
            made = self._client.ask("POST", "/sessions", about, is_over=self._over.is_set)
            self._beat_every = made["beat_seconds"]
            self._key = key
        self._cut_claim()  # it waits for jobs of the session that has ended

    def ask(self, path: str, body: Any, **more: Any) -> Any:
        """A request about this worker's session. One that has ended is replaced, and the request fails:
        its jobs are lost."""
        key = self._key
        try:
            return self._client.ask("POST", f"/sessions/{key}{path}", body, **more)
        except RemoteError as error:
            if error.code == "session-ended" and not self._over.is_set():
                log.warning("the session has ended; its jobs are another worker's")
                self._register(key)
            raise

    def _beat(self) -> None:
        began = time.monotonic()
        # From the beginning of the last one: with a slow server a lease has as many heartbeats.
        while not self._over.wait(max(began + self._beat_every - time.monotonic(), 0)):
            began = time.monotonic()
            try:
                self._beat_once()
            except RemoteError as error:
                log.warning("heartbeat: %s", error)
            except Exception:
                log.exception("heartbeat")
        self._client.close()

    def _beat_once(self) -> None:
        with self.lock:
            named = [context.ref for context in self._running.values()]
            on_the_way = set(self._claiming)
            answers, self._answers = self._answers[:100], self._answers[100:]
        try:
            body = {"running": named, "answers": answers}
            # One that hangs is given up after half of the lease, so that the next one keeps the jobs.
            every = self._beat_every
            found = self.ask("/heartbeat", body, patience=every / 2, limit=2 * every)
        except RemoteError:
            self._answers += answers
            raise
        why: Why
        for why, refs in (("cancel", found["cancelled"]), ("lost", found["lost"])):
            for ref in refs:
                context = self._running.get(_pair(ref))
                if context is not None:
                    context.stop(why)
        strays = [
            {**ref, "outcome": "release"}
            for ref in found["unlisted"]
            if ref["token"] not in on_the_way | self._claiming and _pair(ref) not in self._running
        ]
        if strays:
            self.ask("/finish", {"outcomes": strays}, patience=0)
        for order in found["orders"]:
            if order["id"] not in self._met:
                self._met[order["id"]] = None
                self._answers.append({"id": order["id"], **self._obey(order)})

    def _obey(self, order: Mapping[str, Any]) -> dict[str, str]:
        match order["do"]:
            case "quiet":
                self._quiet.set()
                self._cut_claim()
            case "resume":
                self._quiet.clear()
            case "stop" | "drain":
                if order["grace"] is not None:
                    self._grace = order["grace"]
                self.stop()
            case other:
                return {"state": "failed", "text": f"a worker over HTTP does not know {other!r}"}
        return {"state": "done", "text": ""}

    # -- jobs --------------------------------------------------------------------------------------

    def _count(self) -> int:
        return len(self._running)

    def _contexts(self) -> list[RemoteContext]:
        with self.lock:
            return list(self._running.values())

    def _claim_until_stopped(self, burst: bool) -> None:
        pause = FIRST_CLAIM_PAUSE
        while not self._stopping.is_set():
            if self._quiet.is_set() or not self._free.acquire(timeout=0.2):
                self._stopping.wait(0.2 if self._quiet.is_set() else 0)
                continue
            free = 1
            while free < MOST_IN_BATCH and self._free.acquire(blocking=False):
                free += 1
            jobs: list[Any] = []
            try:
                jobs = self._claim(free, 0.0 if burst else POLL)
                pause = FIRST_CLAIM_PAUSE
            except RemoteError as error:
                if not self._stopping.is_set() and not self._quiet.is_set():
                    log.warning("claim: %s", error)
                    self._stopping.wait(error.retry_after + _rng.uniform(pause / 2, pause))
                    pause = min(pause * 2, GREATEST_PAUSE)
            finally:
                for _ in range(free - len(jobs)):
                    self._free.release()
            if burst and not jobs and not self._count():
                return

    def _claim(self, most: int, wait: float) -> list[Any]:
        token = str(uuid.uuid4())
        with self.lock:
            self._claiming.add(token)
        key = self._key
        body = {"max": most, "wait": f"{int(wait)}s", "claim": token}
        self._claimer = threading.get_ident()
        try:
            if self._stopping.is_set():  # after the line above: stop() finds either
                return []
            # Never repeated: what a lost reply took, the next heartbeat lists.
            jobs: list[Any] = self.ask("/claim", body, patience=0, wait=wait)["jobs"]
            contexts = [RemoteContext(self, job) for job in jobs]
            with self.lock:
                if key != self._key:  # its session ended meanwhile: the jobs are free, or another's
                    log.warning("%d claimed jobs are dropped: their session has ended", len(jobs))
                    return []
                self._running.update((_pair(context.ref), context) for context in contexts)
        finally:
            self._claimer = None
            with self.lock:
                self._claiming.discard(token)
        for context in contexts:
            name = f"winch {context.job['task']}"
            threading.Thread(target=self._run, args=(context,), name=name, daemon=True).start()
        return jobs

    def _run(self, context: RemoteContext) -> None:
        job = context.job
        try:
            value = self._handlers[job["task"]](context, **job["args"])
            end: dict[str, Any] = {"outcome": "complete", "result": value}
            if isinstance(value, Directive):
                end = _directed(value)
        except Directive as error:
            end = _directed(error)
        except Stopped:
            end = {"outcome": "release", "has_started": True}
            if context.stopped_by == "cancel":
                end = {"outcome": "cancel", "reason": "cancelled while it ran"}
            elif context.stopped_by == "timeout":
                end = _timed_out(context)
        except BaseException as error:  # whatever a handler raises is its outcome
            failure = {
                "type": type(error).__qualname__,
                "message": str(error),
                "traceback": traceback.format_exc(),
            }
            end = {"outcome": "fail", "error": failure}
        finally:
            self._client.close()  # this thread's own
            self._free.release()
        if context.ends():
            self._ends.put({**context.ref, **end})

    def _watch_timeouts(self) -> None:
        while not self._over.wait(LOOK_EVERY):
            for context in self._contexts():
                if context.is_late():
                    context.stop("timeout")
                # A handler that goes on keeps its slot, and what it returns is dropped.
                if context.is_late(by=STOP_SECONDS) and context.ends():
                    log.warning("job %s: its handler goes on past its timeout", context.id)
                    self._ends.put({**context.ref, **_timed_out(context)})

    def _send_ends(self) -> None:
        while True:
            first = self._ends.get()
            if first is None:
                self._client.close()
                return
            batch = [first]
            while len(batch) < MOST_IN_BATCH and not self._ends.empty():
                more = self._ends.get()
                if more is None:
                    self._ends.put(None)
                    break
                batch.append(more)
            self._send(batch)

    def _send(self, batch: list[dict[str, Any]]) -> None:
        """Send how jobs ended, as often as needed: a repeat changes nothing."""
        try:
            answers = self.ask(
                "/finish", {"outcomes": batch}, patience=3600.0, is_over=self._over.is_set
            )["answers"]
        except (RemoteError, ValueError, TypeError) as error:
            answers = []
            if len(batch) > 1 and not (isinstance(error, RemoteError) and error.status in (0, 404)):
                for one in batch:  # one that the server refuses must not keep the others
                    self._send([one])
                return
            log.warning("an end was refused: %s", error)
            if batch[0]["outcome"] == "complete":
                why = {"type": type(error).__qualname__, "message": str(error)}
                ref = {"id": batch[0]["id"], "token": batch[0]["token"]}
                if not isinstance(error, RemoteError) or error.status in (413, 422):
                    self._send([{**ref, "outcome": "fail", "error": why}])
                    return
        for answer in answers:
            if answer["answer"] == "lost":
                log.warning("job %s: its claim had ended; the result is dropped", answer["id"])
        with self.lock:
            for one in batch:
                self._running.pop(_pair(one), None)


def _timed_out(context: RemoteContext) -> dict[str, Any]:
    why = f"took longer than its timeout of {context.timeout:g} s"
    return {"outcome": "fail", "error": {"type": "winch.JobTimeout", "message": why}}


def _directed(given: Directive) -> dict[str, Any]:
    """The outcome that a handler has chosen."""
    match given:
        case RetryAfter():
            return {"outcome": "retry", "delay": _text(given.delay), "reason": given.reason}
        case Snooze():
            return {"outcome": "snooze", "delay": _text(given.delay), "reason": given.reason}
        case Cancel():
            return {"outcome": "cancel", "reason": given.reason}
        case Discard():
            return {"outcome": "discard", "reason": given.reason}
    raise TypeError(f"no outcome: {given!r}")


def _text(delay: timedelta) -> str:
    return f"{delay // timedelta(milliseconds=1)}ms"


def _pair(ref: Mapping[str, Any]) -> tuple[str, str]:
    return ref["id"], ref["token"]
