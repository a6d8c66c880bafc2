"""Workers over the HTTP API, one job at a time: claim, finish, heartbeat, cancel."""

from __future__ import annotations

import itertools
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.web.kit import Web
from winch import Limit
from winch.core.errors import StorageUnavailable
from winch.core.lifecycle import JobState
from winch.storage.params import ClaimParams, Finish
from winch.web.api.work import session_of


def test_a_worker_in_any_language(web: Web) -> None:
    web.mail.enqueue("ada", password="open sesame")
    [job] = web.claim("mail", worker="node-1", lease="10s")
    assert job["args"] == {"to": "ada", "password": "open sesame"}, "a worker gets what was meant for it"
    assert (job["attempt"], job["task"]) == (1, "shop.mail")
    beat = web.api(
        "POST",
        f"/jobs/{job['id']}/heartbeat",
        {"token": job["token"], "lease": "10s", "progress": {"percent": 40}, "checkpoint": {"at": 3}},
    )
    assert beat.status_code == 200, beat.text
    assert beat.json()["is_cancel_requested"] is False
    assert web.api("GET", f"/jobs/{job['id']}").json()["progress"] == {"percent": 40}
    done = web.api("POST", f"/jobs/{job['id']}/complete", {"token": job["token"], "result": {"ok": 1}})
    assert done.json() == {"id": job["id"], "state": "completed"}
    repeated = web.api("POST", f"/jobs/{job['id']}/complete", {"token": job["token"], "result": None})
    assert repeated.status_code == 200, "a repeat of a lost answer is no error"
    assert web.api("GET", f"/jobs/{job['id']}/result").json()["result"] == {"ok": 1}
    assert web.app.workers.list() == [], "its session has ended with it"


def test_a_stale_token_is_a_lost_claim(web: Web) -> None:
    web.add.enqueue(1)
    [job] = web.claim()
    driver = web.app.ready()
    driver.run(driver.end_session(session_of(job["token"], "local")))  # as a rescue does
    [new] = web.claim()
    assert (new["id"], new["attempt"]) == (job["id"], 1)
    assert new["fence"] > job["fence"]
    for verb, more in (
        ("complete", {}),
        ("fail", {}),
        ("heartbeat", {}),
        ("heartbeat", {"progress": 1}),
    ):
        answer = web.api("POST", f"/jobs/{job['id']}/{verb}", {"token": job["token"], **more})
        assert (answer.status_code, answer.json()["code"]) == (409, "lost-claim")
    assert web.api("POST", f"/jobs/{job['id']}/complete", {"token": "x"}).status_code == 409
    assert web.api("GET", f"/jobs/{job['id']}").json()["state"] == "running"


def test_a_failed_job_is_retried_by_its_policy(web: Web) -> None:
    mail = web.mail.enqueue("ada")
    for attempt, retry_in in ((1, None), (2, "1ms")):
        if attempt == 2:
            mail.retry()
        [job] = web.claim("mail")
        body = {"token": job["token"], "error": "no route to host"}
        if retry_in:
            body["retry_in"] = retry_in
        assert web.api("POST", f"/jobs/{job['id']}/fail", body).json()["state"] == "retrying"
    record = mail.refresh().record
    errors = [entry.error for entry in record.history if entry.error is not None]
    assert [error.message for error in errors] == ["no route to host"] * 2
    assert record.run_at - record.history[-1].at < timedelta(seconds=1)


def test_a_limit_holds_for_workers_over_http(web: Web) -> None:
    @web.app.task(name="shop.one", queue="one", limit=[Limit(1)])
    def one_at_a_time() -> None: ...

    web.app.enqueue_many([one_at_a_time.bind(), one_at_a_time.bind()])
    driver = web.app.ready()
    driver.run(driver.admit(is_sweep=True))
    [first] = web.claim("one", max=2)
    assert web.claim("one") == [], "the permit is out"
    web.api("POST", f"/jobs/{first['id']}/complete", {"token": first["token"]})
    driver.run(driver.admit(is_sweep=True))
    [second] = web.claim("one", max=2)
    assert second["id"] != first["id"]


def test_a_claim_waits_for_a_job(web: Web) -> None:
    job = web.add.using(delay="300ms").enqueue(1)
    driver = web.app.ready()
    assert web.claim(wait="0s") == []
    import threading

    def promote() -> None:
        while driver.run(driver.promote()).count == 0:
            time.sleep(0.05)

    thread = threading.Thread(target=promote)
    thread.start()
    try:
        [found] = web.claim(wait="20s")
    finally:
        thread.join()
    assert found["id"] == job.id


def test_a_claim_that_fails_halfway_gives_back_what_it_took(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client never gets those jobs, and their leases may be long."""
    jobs = web.app.enqueue_many([web.add.bind(n) for n in range(3)])
    driver = web.app.ready()
    claim, calls = driver.claim, itertools.count(1)

    def breaking(params: ClaimParams) -> Any:
        if next(calls) == 3:
            raise StorageUnavailable("the store is away")
        return claim(params)

    monkeypatch.setattr(driver, "claim", breaking)
    answer = web.api("POST", "/queues/default/claim", {"max": 3, "lease": "1h"})
    assert (answer.status_code, next(calls)) == (503, 4)
    assert [job.refresh().state for job in jobs] == ["ready"] * 3
    assert {job["id"] for job in web.claim(max=3)} == {job.id for job in jobs}


def test_a_cancel_reaches_the_worker(web: Web) -> None:
    web.add.enqueue(1)
    [job] = web.claim()
    assert web.api("POST", f"/jobs/{job['id']}/cancel", {}).json()["was"] == "running"
    beat = web.api("POST", f"/jobs/{job['id']}/heartbeat", {"token": job["token"]}).json()
    assert beat["is_cancel_requested"] is True
    ended = web.api("POST", f"/jobs/{job['id']}/release", {"token": job["token"]})
    assert ended.json()["state"] == "cancelled"


def test_a_vanished_worker_loses_its_lease_and_nothing_else(web: Web) -> None:
    web.app.enqueue_many([web.add.bind(1), web.add.bind(2)])
    gone, stays = web.claim(max=2, lease="1s")
    driver = web.app.ready()

    end = time.monotonic() + 20
    rescued: list[str] = []
    while not rescued and time.monotonic() < end:
        beat = web.api("POST", f"/jobs/{stays['id']}/heartbeat", {"token": stays["token"]})
        assert beat.status_code == 200
        rescued = [job.id for job in driver.run(driver.rescue())]
        time.sleep(0.05)
    assert rescued == [gone["id"]]
    late = web.api("POST", f"/jobs/{gone['id']}/complete", {"token": gone["token"]})
    assert late.json()["code"] == "lost-claim"


def test_a_finish_outside_of_http_is_seen(web: Web) -> None:
    web.add.enqueue(1)
    [job] = web.claim()
    driver = web.app.ready()
    done = Finish(id=job["id"], token=job["token"], to=JobState.COMPLETED, what="completed")
    driver.run(driver.finish([done]))
    assert web.api("GET", f"/jobs/{job['id']}").json()["state"] == "completed"


ENDINGS: dict[str, dict[str, Any]] = {
    "complete": {"result": 1},
    "fail": {"error": "no such user", "retry_in": "1h"},
    "release": {},
}


@pytest.mark.parametrize("first", ENDINGS)
def test_only_the_same_end_of_a_claim_may_be_repeated(web: Web, first: str) -> None:
    """A second end of another kind is not recorded, so its sender must get an error."""
    job = web.add.enqueue(1)
    [claim] = web.claim()
    token = {"token": claim["token"]}
    assert web.api("POST", f"/jobs/{job.id}/{first}", ENDINGS[first] | token).status_code == 200
    before = web.api("GET", f"/jobs/{job.id}").json()
    for second, body in ENDINGS.items():
        answer = web.api("POST", f"/jobs/{job.id}/{second}", body | token)
        assert answer.status_code == (200 if second == first else 409), (first, second)
        if second != first:
            assert answer.json()["code"] == "lost-claim"
    assert web.api("GET", f"/jobs/{job.id}").json() == before
