"""A worker of an SDK is killed with SIGKILL while it runs a thousand jobs. `make clients`; slow.

All jobs complete. None silently runs twice: what ran again has another fence and a line in its history.
None waits for longer than one lease and two sweeps before it is ready again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.clients.languages import Language, languages
from tests.clients.runner import Runner
from tests.clients.stage import ROLES, STORES, SWEEP, Serving, Stage

pytestmark = pytest.mark.slow
JOBS = 1000
KILL_AFTER = 300
LEASE = 2.0
# What a busy machine adds to the time of a sweep.
SLACK = 1.5
# The Python client has a test of its own in tests/web/test_remote.py, without a proxy and a runner.
LANGUAGES = [one for one in languages().values() if one.is_here]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("kills"))
    yield made
    made.close()


@pytest.fixture(scope="module", params=[one.name for one in LANGUAGES])
def language(request: pytest.FixtureRequest) -> Language:
    found = languages()[request.param]
    found.make()
    return found


@pytest.mark.parametrize("store", STORES)
def test_a_worker_killed_in_the_middle_of_a_thousand_jobs(
    stage: Stage, language: Language, store: str
) -> None:
    with stage.own(store, {}) as serving:
        token, _ = serving.new_token("sdk", ROLES)
        ids = enqueue(serving)
        first = start(stage, language, serving, token, "first")
        assert first.wait_for_events(lambda events: count(events) >= KILL_AFTER, 120), first.log_tail()
        first.kill()
        killed = datetime.now(UTC)
        second = start(stage, language, serving, token, "second")
        try:
            until_completed(serving)
        finally:
            second.kill()
        starts = [
            one for runner in (first, second) for one in runner.events() if one["event"] == "start"
        ]
        for runner in (first, second):
            runner.end()
        runs: dict[str, list[dict[str, Any]]] = {}
        for event in starts:
            runs.setdefault(event["job"], []).append(event)
        assert sorted(runs) == sorted(ids), "a job never ran, or an unknown one did"
        assert len(starts) < JOBS + 100, "only what the killed worker held may run again"
        longest = 0.0
        rescued = rescues(serving)
        for job, events in runs.items():
            at = rescued.get(job, [])
            assert len({event["fence"] for event in events}) == len(events), job
            assert len(events) - 1 <= len(at), "a job ran twice and its history has no reason"
            longest = max([longest, *((one - killed).total_seconds() for one in at)])
        assert longest > 0, "the kill met no running job"
        assert longest <= LEASE + 2 * SWEEP + SLACK, f"a job waited {longest:.1f} s for its rescue"


def enqueue(serving: Serving) -> list[str]:
    declared = {"task": "kill.count", "schema": {"properties": {"n": {"type": "integer"}}}}
    body = {"worker": "declares", "queues": ["kills"], "contracts": [{**declared, "queue": "kills"}]}
    made = serving.request("POST", "/sessions", body)
    assert made.status_code == 201, made.text
    serving.request("DELETE", f"/sessions/{made.json()['key']}")
    ids: list[str] = []
    for at in range(0, JOBS, 250):
        jobs = [{"task": "kill.count", "args": {"n": n}} for n in range(at, at + 250)]
        reply = serving.request("POST", "/jobs:bulk", {"jobs": jobs})
        assert reply.status_code == 202, reply.text
        ids += [one["id"] for one in reply.json()["jobs"]]
    return ids


def start(stage: Stage, language: Language, serving: Serving, token: str, name: str) -> Runner:
    """A worker of its own, which writes a line before each job goes on."""
    runner = Runner(language.argv(), stage.folder, {})
    url = f"http://127.0.0.1:{serving.port}"
    runner.ask({"do": "connect", "client": "main", "url": url, "token": token})
    runner.ask(
        {
            "do": "worker.start",
            "client": "main",
            "worker": name,
            "name": name,
            "queues": ["kills"],
            "slots": 8,
            "lease": f"{LEASE:.0f}s",
            "tasks": {"kill.count": {"run": [{"sleep": "10ms"}, {"return": {"$": "args.n"}}]}},
        }
    )
    return runner


def count(events: list[dict[str, Any]]) -> int:
    return sum(event["event"] == "start" for event in events)


def rescues(serving: Serving) -> dict[str, list[datetime]]:
    """When jobs were taken back from a worker that had gone, by job."""
    found: dict[str, list[datetime]] = {}
    path = "/jobs?queue=kills&limit=200"
    cursor: str | None = ""
    while cursor is not None:
        page = serving.request("GET", f"{path}&cursor={cursor}" if cursor else path).json()
        for job in page["jobs"]:
            assert job["state"] == "completed", job
            if job["rescues"]:
                history = serving.request("GET", f"/jobs/{job['id']}").json()["history"]
                at = [entry["at"] for entry in history if entry["what"] == "rescued"]
                found[job["id"]] = [datetime.fromisoformat(one) for one in at]
        cursor = page["next"]
    return found


def until_completed(serving: Serving) -> None:
    end = time.monotonic() + 180
    while True:
        found = serving.request("GET", "/stats").json()["jobs"]
        if found.get("completed") == JOBS:
            return
        assert time.monotonic() < end, found
        time.sleep(0.2)
