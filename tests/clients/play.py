"""Plays one scenario: steps of the SDK under test, steps of the harness, and what must be true then.

clients/scenarios/README.md documents the format.
"""

from __future__ import annotations

import json
import re
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.languages import Language
from tests.clients.proxy import Fault, Proxy
from tests.clients.runner import Runner, RunnerFailed
from tests.clients.stage import ROLES, Serving, Stage
from tests.clients.values import ScenarioError, filled, misfit, seconds

WITHIN = "20s"
POLL_SECONDS = 0.05
TOKEN = re.compile(r"winch_[0-9a-f]{12}_[A-Za-z0-9_-]{20,}")


class Failed(Exception):
    """A scenario that an SDK did not pass: the step, and what was wrong."""


@dataclass(frozen=True)
class Scenario:
    """A file of clients/scenarios."""

    file: str
    name: str
    server: str
    env: dict[str, str]
    tasks: dict[str, Any]
    steps: tuple[dict[str, Any], ...]
    is_quick: bool
    tags: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Scenario:
        given = json.loads(path.read_text())
        known = {"name", "server", "env", "tasks", "steps", "quick", "tags"}
        if odd := set(given) - known:
            raise ScenarioError(f"{path.name}: unknown fields {sorted(odd)}")
        return cls(
            path.stem,
            given["name"],
            given.get("server", "shared"),
            given.get("env", {}),
            given.get("tasks", {}),
            tuple(given["steps"]),
            given.get("quick", False),
            tuple(given.get("tags", ())),
        )


def play(scenario: Scenario, language: Language, stage: Stage, store: str) -> float:
    """Play it; returns its seconds. Raises Failed."""
    started = time.monotonic()
    with ExitStack() as stack:
        if scenario.server == "own" or scenario.env:
            serving = stack.enter_context(stage.own(store, scenario.env))
        else:
            serving = stage.shared(store)
        play = _Play(scenario, language, stage.folder, serving)
        stack.callback(play.close)
        play.run()
    return time.monotonic() - started


class _Play:
    def __init__(self, scenario: Scenario, language: Language, folder: Path, serving: Serving) -> None:
        self._scenario = scenario
        self._language = language
        self._folder = folder
        self._serving = serving
        self._proxy = Proxy(lambda: serving.port)
        self._proxy.start()
        ns = f"s{secrets.token_hex(4)}"
        self._ns = ns
        self._variables: dict[str, Any] = {"ns": ns, "queue": f"{ns}-work", "task": f"{ns}.task"}
        self._runners: dict[str, Runner] = {}
        self._past: list[tuple[str, str]] = []  # what runners that have ended have written
        self._pending: dict[str, tuple[Runner, int]] = {}
        self._token, _ = serving.new_token(f"{ns}-sdk", ROLES)
        self._started = time.monotonic()

    def run(self) -> None:
        self._declare()
        for number, raw in enumerate(self._scenario.steps, 1):
            try:
                step = filled(raw, self._variables)
                self._steps(step)(step)
            except Exception as error:
                logs = "\n".join(runner.log_tail() for runner in self._runners.values())
                raise Failed(
                    f"step {number} of {self._scenario.file} ({json.dumps(raw)[:300]}):\n"
                    f"{type(error).__name__}: {error}\n"
                    f"events: {json.dumps([_facts(one) for one in self._events()])[:3000]}\n"
                    f"requests: {self._last_requests()}\n"
                    f"the runner's log:\n{logs}"
                ) from error
        self._check_secrets()

    def _steps(self, step: Mapping[str, Any]) -> Callable[[dict[str, Any]], None]:
        kinds: dict[str, Callable[[dict[str, Any]], None]] = {
            "sdk": self._sdk,
            "finish": self._finish,
            "http": self._http,
            "job": self._job,
            "worker": self._worker,
            "event": self._event,
            "no_event": self._no_event,
            "events": self._count_events,
            "requests": self._count_requests,
            "server": self._server,
            "runner": self._runner,
            "proxy": self._fault,
            "new_token": self._new_token,
            "revoke": self._revoke,
            "end_session": self._end_session,
            "check": lambda step: _check(step["is"], step["check"], "value"),
            "pause": lambda step: time.sleep(seconds(step["pause"])),
            "set": lambda step: self._variables.update(step["set"]),
        }
        # A step of the SDK names a job or a worker as well: the first kind in this order counts.
        found = next((kinds[name] for name in kinds if name in step), None)
        if found is None:
            raise ScenarioError(f"no such step: {json.dumps(step)}")
        return found

    def close(self) -> None:
        for runner in self._runners.values():
            runner.kill()
            runner.end()
        self._proxy.close()

    def _last_requests(self) -> str:
        """The last ones, each as long as it repeats only once."""
        lines: list[str] = []
        for one in self._proxy.requests():
            line = f"{one.method} {re.sub('/[0-9a-f-]{36}', '/…', one.path)} {one.status}"
            if not lines or lines[-1] != line:
                lines.append(line)
        return ", ".join(lines[-12:])

    # -- the SDK -------------------------------------------------------------------------------------

    def _on(self, step: Mapping[str, Any]) -> Runner:
        name = step.get("on", "main")
        if name not in self._runners:
            self._start(name)
        return self._runners[name]

    def _start(self, name: str) -> None:
        env = {"WINCH_SCENARIO": self._scenario.file}
        runner = Runner(self._language.argv(), self._folder, env)
        self._runners[name] = runner
        runner.ask({"do": "connect", "client": "main", "url": self._proxy.url, "token": self._token})

    def _sdk(self, step: dict[str, Any]) -> None:
        runner = self._on(step)
        own = ("sdk", "on", "save", "expect", "error", "start", "within", "why", "ready")
        request = {name: value for name, value in step.items() if name not in own}
        request = {"do": step["sdk"], "client": "main", **request}
        if step["sdk"] == "connect":
            request = {"url": self._proxy.url, **request}
        if step["sdk"] == "worker.start":
            request = {"queues": [self._variables["queue"]], "slots": 4, "lease": "4s", **request}
            request["name"] = self._worker_name(step["worker"])
        number = runner.send(request)
        if "start" in step:
            self._pending[step["start"]] = runner, number
            return
        self._take(step, runner, number)
        if step["sdk"] == "worker.start" and step.get("ready", True):
            self._worker({"worker": step["worker"], "is": {}})

    def _finish(self, step: dict[str, Any]) -> None:
        self._take(step, *self._pending.pop(step["finish"]))

    def _take(self, step: dict[str, Any], runner: Runner, number: int) -> None:
        """The answer to a request, held against the step."""
        try:
            value = runner.answer(number, seconds(step.get("within", "60s")))
        except RunnerFailed as failed:
            if "error" not in step:
                raise
            _check(step["error"], failed.error, "error")
            return
        if "error" in step:
            raise Failed(f"no error, the answer is {value!r}")
        if "expect" in step:
            _check(step["expect"], value, "value")
        if "save" in step:
            self._variables[step["save"]] = value

    def _worker_name(self, worker: str) -> str:
        return f"{self._ns}-{worker}"

    # -- the store, over HTTP ------------------------------------------------------------------------

    def _declare(self) -> None:
        """Declare the scenario's tasks, as a worker of any language does."""
        tasks = filled(self._scenario.tasks, self._variables)
        if not tasks:
            return
        queue = self._variables["queue"]
        contracts = [{"queue": queue, "schema": {}, **one, "task": name} for name, one in tasks.items()]
        body = {"worker": f"{self._ns}-declares", "queues": [queue], "contracts": contracts, "tasks": []}
        body.pop("tasks")
        made = self._serving.request("POST", "/sessions", body)
        if made.status_code != 201:
            raise ScenarioError(f"tasks: {made.text}")
        self._serving.request("DELETE", f"/sessions/{made.json()['key']}")

    def _http(self, step: dict[str, Any]) -> None:
        def look() -> tuple[str | None, Any]:
            answer = self._serving.request(
                step["http"], step["path"], step.get("body"), step.get("token")
            )
            try:
                body = answer.json()
            except ValueError:
                body = answer.text
            found = {"status": answer.status_code, "body": body, "headers": dict(answer.headers)}
            wanted = {"status": {"$in": [200, 201, 202, 204]}, **step.get("expect", {})}
            return misfit(wanted, found), body

        body = _until(look, step.get("within"))
        if "save" in step:
            self._variables[step["save"]] = body

    def _job(self, step: dict[str, Any]) -> None:
        def look() -> tuple[str | None, Any]:
            answer = self._serving.request("GET", f"/jobs/{step['job']}")
            return misfit(step["is"], answer.json()), answer.json()

        body = _until(look, step.get("within", WITHIN))
        if "save" in step:
            self._variables[step["save"]] = body

    def _worker(self, step: dict[str, Any]) -> None:
        """Wait for a live worker that fits; `"is": null`: for its end."""
        name = self._worker_name(step["worker"])

        def look() -> tuple[str | None, Any]:
            workers = self._serving.request("GET", "/workers").json()["workers"]
            mine = [one for one in workers if one["worker"] == name and one["ended_at"] is None]
            if step["is"] is None:
                return (None if not mine else f"worker {step['worker']} is there"), None
            if not mine:
                return f"no worker {step['worker']}", None
            return misfit(step["is"], mine[0]), mine[0]

        found = _until(look, step.get("within", WITHIN))
        if "save" in step:
            self._variables[step["save"]] = found

    def _end_session(self, step: dict[str, Any]) -> None:
        self._worker({"worker": step["end_session"], "is": {}, "save": "_session"})
        self._serving.end_session(self._variables["_session"]["id"])

    def _new_token(self, step: dict[str, Any]) -> None:
        given = step["new_token"]
        text, identity = self._serving.new_token(
            f"{self._ns}-{step['save']}",
            given.get("roles", ROLES),
            queues=given.get("queues"),
            tasks=given.get("tasks"),
            tenant=given.get("tenant"),
            expires=seconds(given["expires"]) if "expires" in given else None,
        )
        self._variables[step["save"]] = {"text": text, "id": identity}

    def _revoke(self, step: dict[str, Any]) -> None:
        self._serving.revoke(step["revoke"])

    # -- what handlers did, and what the SDK sent ----------------------------------------------------

    def _events(self) -> list[dict[str, Any]]:
        return [event for runner in self._runners.values() for event in runner.events()]

    def _matching(self, step: Mapping[str, Any], wanted: Any) -> list[dict[str, Any]]:
        if "on" in step:
            events = self._runners[step["on"]].events() if step["on"] in self._runners else []
        else:
            events = self._events()
        return [event for event in events if misfit(wanted, event) is None]

    def _event(self, step: dict[str, Any]) -> None:
        def look() -> tuple[str | None, Any]:
            found = self._matching(step, step["event"])
            return (None, found[0]) if found else (f"no event {step['event']}", None)

        found = _until(look, step.get("within", WITHIN))
        if "save" in step:
            self._variables[step["save"]] = found

    def _no_event(self, step: dict[str, Any]) -> None:
        until = time.monotonic() + seconds(step.get("for", "0s"))
        while True:
            if found := self._matching(step, step["no_event"]):
                raise Failed(f"there is an event {found[0]}")
            if time.monotonic() >= until:
                return
            time.sleep(POLL_SECONDS)

    def _count_events(self, step: dict[str, Any]) -> None:
        def look() -> tuple[str | None, Any]:
            found = self._matching(step, step["events"])
            return misfit(step["count"], len(found), f"events {step['events']}"), found

        found = _until(look, step.get("within"))
        if "save" in step:
            self._variables[step["save"]] = found

    def _count_requests(self, step: dict[str, Any]) -> None:
        def look() -> tuple[str | None, Any]:
            found = [
                request.facts()
                for request in self._proxy.requests()
                if misfit(step["requests"], request.facts()) is None
            ]
            return misfit(step["count"], len(found), f"requests {step['requests']}"), found

        found = _until(look, step.get("within"))
        if "save" in step:
            self._variables[step["save"]] = found

    # -- the world -----------------------------------------------------------------------------------

    def _server(self, step: dict[str, Any]) -> None:
        if self._scenario.server != "own":
            raise ScenarioError('a scenario that stops its server says "server": "own"')
        match step["server"]:
            case "kill":
                self._serving.kill()
            case "stop":
                self._serving.stop()
            case "start":
                self._serving.start()
            case other:
                raise ScenarioError(f"no step for the server: {other!r}")

    def _runner(self, step: dict[str, Any]) -> None:
        name = step.get("on", "main")
        runner = self._runners[name]
        match step["runner"]:
            case "kill":
                runner.kill()
                self._past.append(("".join(runner.lines), runner.log()))
                del self._runners[name]  # the next step of the SDK starts another process
                runner.end()
            case "stop":
                runner.signal(signal.SIGSTOP)
            case "continue":
                runner.signal(signal.SIGCONT)
            case other:
                raise ScenarioError(f"no step for a runner: {other!r}")

    def _fault(self, step: dict[str, Any]) -> None:
        match step["proxy"]:
            case "clear":
                self._proxy.clear()
            case "refuse":
                self._proxy.refuse()
            case do:
                if do not in ("drop_request", "drop_reply", "delay", "delay_reply", "answer"):
                    raise ScenarioError(f"no fault {do!r}")
                self._proxy.add(
                    Fault(
                        do,
                        step.get("method"),
                        step.get("path", ""),
                        step.get("times", 1),
                        seconds(step.get("for", "0s")),
                        step.get("status", 503),
                        step.get("headers", {}),
                        step.get("body"),
                    )
                )

    def _check_secrets(self) -> None:
        """No token of access and no key of a session is in anything that the SDK wrote."""
        written = [*self._past]
        written += [("".join(one.lines), one.log()) for one in self._runners.values()]
        keys = [
            request.path.split("/")[2]
            for request in self._proxy.requests()
            if request.path.startswith("/sessions/")
        ]
        for lines, log in written:
            for text in (lines, log):
                if TOKEN.search(text) or any(key in text for key in keys):
                    raise Failed(f"a secret is in what the SDK wrote:\n{text[-2000:]}")
            if '"event": "noise"' in lines:
                raise Failed("the runner wrote a line that is no JSON")


def _facts(event: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in ("at", "args")}


def _check(wanted: Any, found: Any, at: str) -> None:
    if (reason := misfit(wanted, found, at)) is not None:
        raise Failed(reason)


def _until(look: Callable[[], tuple[str | None, Any]], within: str | None) -> Any:
    """Look until nothing is wrong, for so long; once where there is no time."""
    end = time.monotonic() + (0.0 if within is None else seconds(within))
    while True:
        reason, found = look()
        if reason is None:
            return found
        if time.monotonic() >= end:
            raise Failed(reason if within is None else f"after {within}: {reason}")
        time.sleep(POLL_SECONDS)
