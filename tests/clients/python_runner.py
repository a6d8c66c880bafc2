"""The runner of `winch.remote`: does what the harness asks for, a JSON document on each line.

clients/scenarios/README.md documents the requests, the actions of handlers and the events.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from winch.core.outcome import Cancel, Discard, RetryAfter, Snooze
from winch.remote import RemoteClient, RemoteContext, RemoteError, RemoteWorker, Stopped

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_writing = threading.Lock()


def write(document: Mapping[str, Any]) -> None:
    with _writing:
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)(ms|s|m|h)", text)
    assert found is not None, text
    return int(found[1]) * UNITS[found[2]]


class Asked(Exception):
    """The error that a scenario wants a handler to raise; its name on the wire is the scenario's."""


class Handler:
    """A handler that takes the actions of a scenario."""

    def __init__(self, worker: str, task: str, actions: Sequence[Mapping[str, Any]]) -> None:
        self._worker = worker
        self._task = task
        self._actions = actions
        self._runs: Counter[str] = Counter()

    def __call__(self, ctx: RemoteContext, **args: Any) -> Any:
        self._runs[ctx.id] += 1
        run = self._runs[ctx.id]
        about = {"worker": self._worker, "task": self._task, "job": ctx.id, "attempt": ctx.attempt}
        fence = ctx.job["fence"]
        write({"event": "start", **about, "run": run, "fence": fence, "args": args})
        try:
            value = self._act(ctx, args, run, self._actions, about)
        except Stopped:
            write({"event": "end", **about, "how": "stopped", "by": ctx.stopped_by})
            raise
        except BaseException:
            write({"event": "end", **about, "how": "raised"})
            raise
        write({"event": "end", **about, "how": "returned"})
        return value

    def _act(
        self,
        ctx: RemoteContext,
        args: Mapping[str, Any],
        run: int,
        actions: Sequence[Mapping[str, Any]],
        about: Mapping[str, Any],
        value: Any = None,
    ) -> Any:
        facts = {
            "args": args,
            "attempt": ctx.attempt,
            "run": run,
            "checkpoint": ctx.last_checkpoint,
            "headers": ctx.headers,
            "input": ctx.job["input"],
            "id": ctx.id,
        }
        for action in actions:
            [(verb, given)] = action.items()
            given = given if verb == "if" else resolved(given, facts)
            match verb:
                case "return":
                    value = given
                case "mark":
                    write({"event": "mark", **about, "mark": given})
                case "progress":
                    ctx.progress(given)
                case "checkpoint":
                    ctx.checkpoint(given)
                case "log":
                    ctx.log(given)
                case "sleep":
                    time.sleep(seconds(given))
                case "wait":
                    ctx.wait(seconds(given))
                    ctx.check()
                case "children":
                    facts["children"] = ctx.enqueue(given["jobs"], given.get("name", ""))
                case "fail" | "retry" | "snooze" | "discard" | "cancel":
                    raise outcome(verb, given)
                case "if":
                    is_so = resolved(given["value"], facts) == given["is"]
                    branch = given.get("then" if is_so else "else", [])
                    value = self._act(ctx, args, run, branch, about, value)
                case other:
                    raise AssertionError(f"no action {other!r}")
        return value


def outcome(verb: str, given: Mapping[str, Any]) -> Exception:
    """What a handler raises to end like this."""
    match verb:
        case "retry":
            return RetryAfter(given["delay"], given.get("reason"))
        case "snooze":
            return Snooze(given["delay"], given.get("reason"))
        case "discard":
            return Discard(given.get("reason"))
        case "cancel":
            return Cancel(given.get("reason"))
    error: Exception = type(given["type"], (Asked,), {})(given["message"])
    return error


def resolved(value: Any, facts: Mapping[str, Any]) -> Any:
    """The value with `{"$": "args.n"}` replaced by that fact."""
    if isinstance(value, dict):
        if list(value) == ["$"]:
            found: Any = facts
            for name in value["$"].split("."):
                found = found.get(name) if isinstance(found, Mapping) else None
            return found
        return {name: resolved(one, facts) for name, one in value.items()}
    if isinstance(value, list):
        return [resolved(one, facts) for one in value]
    return value


class Session:
    """What one runner has: clients and workers by name."""

    def __init__(self) -> None:
        self._clients: dict[str, RemoteClient] = {}
        self._workers: dict[str, tuple[RemoteWorker, threading.Thread]] = {}

    def do(self, verb: str, given: dict[str, Any]) -> Any:
        client = self._clients.get(given.pop("client", "main"), None)
        methods: dict[str, Callable[[], Any]] = {
            "enqueue": lambda: self._enqueue(client, **given),
            "enqueue_many": lambda: client.enqueue_many(given["jobs"]),  # type: ignore[union-attr]
            "get": lambda: client.get(given["job"]),  # type: ignore[union-attr]
            "cancel": lambda: client.cancel(given["job"], given.get("reason")),  # type: ignore[union-attr]
            "retry": lambda: client.retry(given["job"]),  # type: ignore[union-attr]
            "result": lambda: self._result(client, given),
            "worker.start": lambda: self._start(client, given),
            "worker.stop": lambda: self._stop(given["worker"]),
            "worker.wait": lambda: self._wait(given["worker"]),
        }
        return methods[verb]()

    def connect(self, client: str, url: str, token: str) -> None:
        self._clients[client] = RemoteClient(url, token)

    def _enqueue(
        self, client: RemoteClient | None, task: str, args: Any = None, options: Any = None
    ) -> str:
        assert client is not None
        return client.enqueue(task, args or {}, **(options or {}))

    def _result(self, client: RemoteClient | None, given: Mapping[str, Any]) -> Any:
        assert client is not None
        return client.result(given["job"], seconds(given.get("timeout", "30s")))

    def _start(self, client: RemoteClient | None, given: Mapping[str, Any]) -> None:
        assert client is not None
        name = given["worker"]
        worker = RemoteWorker(
            client,
            given["queues"],
            slots=given["slots"],
            lease=given["lease"],
            name=given["name"],
        )
        for task, about in given["tasks"].items():
            contract = {key: about[key] for key in ("schema", "queue", "attempts") if key in about}
            worker.task(task, **contract)(Handler(name, task, about["run"]))

        def work() -> None:
            worker.run(burst=given.get("burst", False), grace=seconds(given.get("grace", "30s")))
            write({"event": "ended", "worker": name})

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._workers[name] = worker, thread

    def _wait(self, name: str) -> None:
        self._workers[name][1].join()

    def _stop(self, name: str) -> None:
        worker, thread = self._workers[name]
        worker.stop()
        thread.join()


def answer(session: Session, request: dict[str, Any]) -> None:
    number, verb = request.pop("id"), request.pop("do")
    try:
        if verb == "connect":
            session.connect(**request)
            value = None
        else:
            value = session.do(verb, request)
        write({"id": number, "value": value})
    except RemoteError as error:
        problem = {"status": error.status, "code": error.code, "message": error.detail}
        write({"id": number, "error": problem})
    except TimeoutError as error:
        write({"id": number, "error": {"status": 0, "code": "timeout", "message": str(error)}})
    except Exception as error:
        problem = {"status": 0, "code": type(error).__name__, "message": str(error)}
        write({"id": number, "error": problem})


def main() -> None:
    session = Session()
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "connect":
            answer(session, request)
        else:
            threading.Thread(target=answer, args=(session, request), daemon=True).start()


if __name__ == "__main__":
    main()
