"""The outbox while its relays are killed and its receiver falters."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.faults.stage import ONE_STORE, Stage
from tests.servers import Databases
from winch.core.lifecycle import JobState

pytestmark = [pytest.mark.servers, pytest.mark.faults]

KEYS, EACH = 3, 12


class Receiver(ThreadingHTTPServer):
    """Takes messages, and refuses every fifth."""

    daemon_threads = True

    def __init__(self) -> None:
        self.got: list[tuple[str, int]] = []
        self.asked = 0
        self.guard = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.guard:
            self.server.asked += 1
            is_refused = self.server.asked % 5 == 0
            if not is_refused:
                self.server.got.append((event["subject"], event["data"]))
        self.send_response(503 if is_refused else 200)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.shutdown()
        thread.join()
        receiver.server_close()


@pytest.mark.scenario
@pytest.mark.parametrize("store", ONE_STORE)
def test_killed_relays_lose_nothing_and_keep_the_order(store: str, postgres_server: Databases) -> None:
    with Stage("kill -9 of relays", store, postgres_server) as stage, receiving() as receiver:
        outbox = stage.app.outbox
        env = {"WINCH_TEST_HOOK": f"http://127.0.0.1:{receiver.server_port}/"}
        first = stage.fleet.worker(concurrency=2, processes=2, env=env)
        stage.ready(first, 2)
        jobs = [
            outbox.add("orders", key=str(key), payload=number).id
            for number in range(EACH)
            for key in range(KEYS)
        ]
        stage.until(lambda: len(receiver.got) >= KEYS * 2, 20, "the first deliveries")
        first.kill_child(first.children()[0])
        stage.until(lambda: len(receiver.got) >= KEYS * 4, 20, "more deliveries")
        first.kill_all()
        second = stage.fleet.worker(concurrency=4, env=env)
        stage.ready(second)
        stage.until_final(60)
        assert {job.state for job in stage.jobs(jobs)} == {JobState.COMPLETED}
        for key in range(KEYS):
            got = [number for name, number in receiver.got if name == str(key)]
            assert sorted(set(got)) == list(range(EACH)), "every message arrives"
            assert got == sorted(got), "in the order they were added; a repeat comes at once"
        stage.measured(f"{len(jobs)} messages, {len(receiver.got) - len(jobs)} repeats, 0 out of order")
