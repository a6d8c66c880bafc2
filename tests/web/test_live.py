"""What needs a socket: streams that resume, a slow client, and the commands that serve."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.web.server import serving
from winch import App


@pytest.fixture
def app(tmp_path: Path) -> App:
    app = App(f"sqlite:///{tmp_path / 'winch.db'}", events="full")

    @app.task(name="add")
    def add(a: int) -> int:
        return a

    app.migrate()
    return app


def messages(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """The messages of an event stream, each with id, event and data."""
    found: dict[str, Any] = {}
    for line in answer.iter_lines():
        name, _, value = line.partition(": ")
        if not line and "event" in found:
            yield {**found, "data": json.loads(found["data"])}
            found = {}
        elif name in ("id", "event", "data"):
            found[name] = value


def test_streams_send_changes_and_resume(app: App) -> None:
    add = app.tasks.get("add")
    before = add.enqueue(1)
    with serving(app) as address:
        with httpx.stream("GET", f"{address}/api/v1/events", timeout=20) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["x-accel-buffering"] == "no"
            updates = messages(answer)
            first = next(updates)
            assert (first["event"], first["data"][0]["counts"]["ready"]) == ("queues", 1)
            job = add.enqueue(2)
            event = next(one for one in updates if one["event"] == "job")
            assert (event["data"]["job"], event["data"]["kind"]) == (job.id, "enqueued")
        job.cancel()
        resume = {"last-event-id": event["id"]}
        with httpx.stream("GET", f"{address}/api/v1/events", headers=resume, timeout=20) as answer:
            event = next(one for one in messages(answer) if one["event"] == "job")
            assert (event["data"]["job"], event["data"]["kind"]) == (job.id, "cancelled")

        with httpx.stream("GET", f"{address}/api/v1/jobs/{before.id}/events", timeout=20) as answer:
            updates = messages(answer)
            first = next(updates)
            assert first["data"]["state"] == "ready"
            before.cancel()
            last = next(updates)
            assert last["data"]["state"] == "cancelled"
            assert list(updates) == [], "the stream of a final job ends"
        again = {"last-event-id": last["id"]}
        with httpx.stream(
            "GET", f"{address}/api/v1/jobs/{before.id}/events", headers=again, timeout=20
        ) as answer:
            assert list(messages(answer)) == [], "a received event is not sent again"


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_serve_listens_on_this_machine_and_stops(tmp_path: Path, stop: signal.Signals) -> None:
    url = f"sqlite:///{tmp_path / 'winch.db'}"
    env = {k: v for k, v in os.environ.items() if not k.startswith("WINCH_")}
    command = [sys.executable, "-m", "winch", "serve", "--url", url, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().decode().strip()
            assert address.startswith("http://127.0.0.1:")
            assert httpx.get(f"{address}readyz", timeout=10).json()["status"] == "pass"
            assert httpx.get(address, headers={"host": "evil.test"}, timeout=10).status_code == 421
        finally:
            process.send_signal(stop)
            code = process.wait(timeout=20)
        assert code == 0


def winch(*argv: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("WINCH_")}
    command = [sys.executable, "-m", "winch", *argv, "--url", f"sqlite:///{folder / 'winch.db'}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)


def test_other_addresses_need_a_token_to_exist(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        refused = winch("serve", "--host", host, "--port", "0", folder=tmp_path)
        assert refused.returncode == 2
        assert "winch token create" in refused.stderr
    refused = winch("serve", "--auth", "--port", "0", folder=tmp_path)
    assert refused.returncode == 2


def test_tokens_are_made_listed_and_revoked(tmp_path: Path) -> None:
    made = winch("token", "create", "ci", "--role", "enqueue", "--queue", "mail", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("winch_")
    listed = winch("token", "list", "--json", folder=tmp_path)
    [one] = json.loads(listed.stdout)["tokens"]
    assert (one["name"], one["roles"], one["queues"]) == ("ci", ["enqueue"], ["mail"])
    assert made.stdout.strip() not in listed.stdout
    assert winch("token", "revoke", one["id"], folder=tmp_path).returncode == 0
    assert winch("token", "revoke", one["id"], folder=tmp_path).returncode == 2
    assert json.loads(winch("token", "list", "--json", folder=tmp_path).stdout) == {"tokens": []}
