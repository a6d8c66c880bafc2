"""A job that another program stored with data that JSON cannot hold: it is shown as unreadable."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.web.kit import Web
from winch.core.job import Note
from winch.core.lifecycle import JobState
from winch.storage.params import ClaimRef, Finish, NewJob

HTML = {"accept": "text/html"}
SURROGATE = '{"a":"\\ud800","to":"x"}'
DEEP = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"
LARGE = '{"a":' + "9" * 30 + "}"
REASONS = {SURROGATE: "lone surrogate", DEEP: "nested deeper than 64", LARGE: "past 64 bits"}


def planted(web: Web, args: str, **more: Any) -> str:
    driver = web.app.ready()
    job_id = web.app.client.draw_id()
    driver.run(driver.enqueue([NewJob(id=job_id, task="shop.add", args=args, queue="default", **more)]))
    return job_id


@pytest.fixture(params=[SURROGATE, DEEP, LARGE], ids=["surrogate", "deep", "large"])
def odd(request: pytest.FixtureRequest) -> str:
    text: str = request.param
    return text


def test_unreadable_arguments_are_shown_with_the_reason(web: Web, odd: str) -> None:
    fine = web.add.enqueue(7)
    job_id = planted(web, odd, tags=("t",))
    listed = web.api("GET", "/jobs").json()["jobs"]
    assert {job["id"] for job in listed} == {fine.id, job_id}
    [args] = [job["args"] for job in listed if job["id"] == job_id]
    assert args.startswith("<unreadable: ")
    assert REASONS[odd] in args
    assert web.api("GET", f"/jobs/{job_id}").json()["args"] == args
    for path in ("/jobs", f"/jobs/{job_id}", "/queues/default", "/", "/jobs.csv", "/jobs.ndjson"):
        answer = web.ask("GET", path, headers=HTML)
        assert answer.status_code == 200, (path, answer.text[:300])
        assert path in ("/", "/queues/default") or "unreadable" in answer.text, path
    for q in ("args.a:1", "args.to:x", "anything", "tag:t"):
        assert web.api("GET", "/jobs", params={"q": q}).status_code == 200, q
        assert web.ask("GET", "/jobs", params={"q": q}, headers=HTML).status_code == 200, q
    assert web.api("GET", f"/jobs/{job_id}/why").status_code == 200
    assert web.api("POST", f"/jobs/{job_id}/cancel", {}).status_code == 200
    assert web.api("POST", f"/jobs/{job_id}/retry", {}).status_code == 200


def test_an_unreadable_job_is_dead_for_a_worker_over_http(web: Web, odd: str) -> None:
    """The worker could not run it; it must neither get something else nor keep the others waiting."""
    job_id = planted(web, odd)
    fine = web.add.enqueue(7)
    taken = web.claim(max=5)
    assert [job["id"] for job in taken] == [fine.id]
    job = web.api("GET", f"/jobs/{job_id}").json()
    assert job["state"] == "dead"
    assert job["error"]["type"].endswith("InvalidPayload")
    assert REASONS[odd] in job["error"]["message"]
    assert web.ask("GET", "/dead", headers=HTML).status_code == 200
    assert web.ask("GET", f"/dead/{job['group']}", headers=HTML).status_code == 200
    assert web.api("GET", "/dead/groups").status_code == 200


def test_unreadable_progress_and_results_are_shown_with_the_reason(web: Web, odd: str) -> None:
    driver = web.app.ready()
    job = web.add.enqueue(1)
    [claim] = web.claim()
    ref = ClaimRef(job.id, claim["token"])
    driver.run(driver.note(ref, Note(progress=odd, checkpoint=odd)))
    for path in ("/jobs", f"/jobs/{job.id}"):
        assert web.api("GET", path).status_code == 200
        assert web.ask("GET", path, headers=HTML).status_code == 200
    assert REASONS[odd] in web.api("GET", f"/jobs/{job.id}").json()["progress"]
    done = Finish(id=ref.id, token=ref.token, to=JobState.COMPLETED, what="completed", result=odd)
    driver.run(driver.finish([done]))
    assert REASONS[odd] in web.api("GET", f"/jobs/{job.id}").json()["result"]
    result = web.api("GET", f"/jobs/{job.id}/result")
    assert result.status_code == 200
    assert REASONS[odd] in result.json()["result"]
    assert web.ask("GET", f"/jobs/{job.id}", headers=HTML).status_code == 200
    assert json.loads(result.text)["state"] == "completed"
