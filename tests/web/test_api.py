"""The HTTP API on every store."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.web.kit import Web
from winch import Limit
from winch.core.errors import StorageUnavailable
from winch.core.lifecycle import JobState
from winch.storage.params import ClaimParams, Finish, NewSession
from winch.web.api.work import session_of


def finish_all_dead(web: Web, queue: str = "default") -> list[str]:
    """Claim what is ready and fail it for good."""
    dead = []
    for job in web.claim(queue, max=100):
        answer = web.api(
            "POST",
            f"/jobs/{job['id']}/fail",
            {"token": job["token"], "error": {"type": "Boom", "message": "it broke"}, "is_final": True},
        )
        assert answer.json()["state"] == "dead", answer.text
        dead.append(job["id"])
    return dead


# -- enqueue -----------------------------------------------------------------------------------------


def test_an_enqueued_job_is_there_and_has_an_address(web: Web) -> None:
    answer = web.api("POST", "/jobs", {"task": "shop.add", "args": {"a": 1}, "tags": ["x"]})
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/api/v1/jobs/{job['id']}"
    assert (job["state"], job["queue"], job["args"], job["tags"]) == (
        "ready",
        "default",
        {"a": 1},
        ["x"],
    )
    assert web.ask("GET", answer.headers["location"]).json()["id"] == job["id"]


def test_options_are_the_ones_of_using(web: Web) -> None:
    job = web.api(
        "POST",
        "/jobs",
        {"task": "shop.add", "args": {"a": 1}, "queue": "low", "priority": "high", "delay": "5m"},
    ).json()
    assert (job["state"], job["queue"], job["priority"]) == ("scheduled", "low", 10)


@pytest.mark.parametrize(
    "body, status, code",
    [
        ({"task": "shop.add", "args": {"b": 1}}, 422, "invalid"),
        ({"task": "shop.add", "args": {"a": "x"}}, 422, "invalid"),
        ({"task": "shop.ad", "args": {}}, 422, "unknown-task"),
        ({"task": "shop.add", "args": {"a": 1}, "delay": "5 parsecs"}, 422, "invalid"),
        ({"task": "shop.add", "args": {"a": 1}, "prio": 1}, 422, "invalid"),
        ({"task": "shop.add", "args": {"a": 2**70}}, 400, "bad-request"),
        ({"task": "shop.mail", "args": {"to": "x" * 300_000}}, 413, "too-large"),
        ([], 422, "invalid"),
    ],
)
def test_a_refused_enqueue_is_a_problem_document_with_a_reason(
    make_web: Callable[..., Web], body: object, status: int, code: str
) -> None:
    web = make_web()
    answer = web.api("POST", "/jobs", body)
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["status"]) == (status, code, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["detail"]
    assert problem["type"] == f"urn:winch:problem:{code}"
    assert web.app.jobs.list() == []


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a":1,"a":2}', '{"a": "\\u0000"}', "[" * 70, "{", "é"])
def test_malformed_json_is_refused(make_web: Callable[..., Web], text: str) -> None:
    web = make_web()
    answer = web.ask(
        "POST",
        "/api/v1/jobs",
        content=text.encode("latin-1"),
        headers={"content-type": "application/json"},
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-request")


def test_only_json_is_taken(make_web: Callable[..., Web]) -> None:
    web = make_web()
    body = b'{"task": "shop.add", "args": {"a": 1}}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = web.ask("POST", "/api/v1/jobs", content=body, headers={"content-type": kind})
        assert answer.status_code == 415
    assert web.app.jobs.list() == []


def test_a_task_that_only_workers_know_can_be_enqueued(web: Web) -> None:
    refused = web.api("POST", "/jobs", {"task": "other.task", "queue": "default"})
    assert refused.json()["code"] == "unknown-task"
    web.serve("default")
    web.ask("POST", "/api/v1/queues/none/resume", {})  # whatever changes something: the look is fresh
    assert web.api("POST", "/jobs", {"task": "other.task"}).status_code == 202


def test_an_idempotency_key_gives_one_job(web: Web) -> None:
    body = {"task": "shop.add", "args": {"a": 1}}
    key = {"idempotency-key": '"order-7"'}
    first = web.api("POST", "/jobs", body, headers=key)
    again = web.api("POST", "/jobs", body, headers=key)
    assert first.status_code == again.status_code == 202
    assert first.json()["id"] == again.json()["id"]
    other = web.api("POST", "/jobs", {**body, "args": {"a": 2}}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "key-reused")
    assert len(web.app.jobs.list()) == 1


def test_many_are_stored_whole_or_not_at_all(web: Web) -> None:
    good = [{"task": "shop.add", "args": {"a": n}} for n in range(30)]
    bad = web.api("POST", "/jobs:bulk", {"jobs": [*good, {"task": "shop.add", "args": {}}]})
    assert bad.status_code == 422
    assert web.app.jobs.list() == []
    done = web.api("POST", "/jobs:bulk", {"jobs": good})
    assert done.status_code == 202
    assert [job["is_new"] for job in done.json()["jobs"]] == [True] * 30


def test_prefer_wait_reports_its_timeout(web: Web) -> None:
    answer = web.api(
        "POST", "/jobs", {"task": "shop.add", "args": {"a": 1}}, headers={"prefer": "wait=0"}
    )
    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "wait=0")


def test_prefer_wait_brings_the_result(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    job = web.mail.using(id="0198c000-0000-7000-8000-000000000001").enqueue("ada")
    web.app.run_worker(queues=["mail"], burst=True)
    answer = web.api(
        "POST",
        "/jobs",
        {"task": "shop.mail", "args": {"to": "ada"}, "id": job.id},
        headers={"prefer": "respond-async, wait=10"},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"id": job.id, "state": "completed", "result": "ada", "error": None}
    assert web.api("GET", f"/jobs/{job.id}/result").json()["result"] == "ada"


# -- look --------------------------------------------------------------------------------------------


def test_lists_go_on_by_cursor(web: Web) -> None:
    web.app.enqueue_many([web.add.bind(n) for n in range(7)])
    first = web.api("GET", "/jobs?limit=5&queue=default")
    assert len(first.json()["jobs"]) == 5
    assert 'rel="next"' in first.headers["link"]
    second = web.api("GET", f"/jobs?limit=5&cursor={first.json()['next']}").json()
    assert [job["args"]["a"] for job in second["jobs"]] == [1, 0]
    assert second["next"] is None


@pytest.mark.parametrize(
    "q, found",
    [
        ("", 4),
        ("task:shop.add", 2),
        ("args.a:7", 1),
        ("args.to:ada", 1),
        ("ada", 1),
        ("state:dead", 0),
        ("state:ready,scheduled queue:mail", 2),
        ("attempt:0 enqueued:<1h", 4),
        ("attempt:>3", 0),
        ('"args.to":"grace hopper"', 1),
    ],
)
def test_the_search_box(make_web: Callable[..., Web], q: str, found: int) -> None:
    web = make_web("sqlite")
    web.app.enqueue_many([web.add.bind(7), web.add.bind(8)])
    web.app.enqueue_many([web.mail.bind("ada"), web.mail.bind("grace hopper")])
    answer = web.api("GET", "/jobs", params={"q": q})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["jobs"]) == found


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=1000000000", "state=gone", "q=stat:x",
                                   "q=attempt:x", "cursor=x", "what=1", "q=%22", "limit=1&limit=2",
                                   "queue=%00"])  # fmt: skip
def test_a_wrong_query_is_refused(make_web: Callable[..., Web], query: str) -> None:
    answer = make_web().api("GET", f"/jobs?{query}")
    assert answer.status_code in (400, 422)
    assert answer.json()["detail"]


def test_secrets_are_masked(web: Web) -> None:
    job = web.mail.enqueue("postgres://ada:CANARY2@db/x", password="CANARY1")
    for path in (f"/jobs/{job.id}", "/jobs"):
        text = web.api("GET", path).text
        assert "CANARY" not in text
        assert "***" in text


def test_a_job_that_has_not_changed_is_not_sent_again(web: Web) -> None:
    job = web.add.enqueue(1)
    first = web.api("GET", f"/jobs/{job.id}")
    tag = {"if-none-match": first.headers["etag"]}
    assert web.api("GET", f"/jobs/{job.id}", headers=tag).status_code == 304
    job.cancel()
    assert web.api("GET", f"/jobs/{job.id}", headers=tag).json()["state"] == "cancelled"


def test_why_explains_in_words(web: Web) -> None:
    job = web.add.enqueue(1)
    assert "No worker serves its queue 'default'" in web.api("GET", f"/jobs/{job.id}/why").json()["why"]


def test_a_job_that_is_not_there_is_404(web: Web) -> None:
    for job_id in (str(uuid.uuid4()), "not-a-uuid"):  # no job has an id that is no UUID
        for path in ("", "/why", "/result", "/events"):
            answer = web.api("GET", f"/jobs/{job_id}{path}")
            assert (answer.status_code, answer.json()["code"]) == (404, "not-found")


# -- act ---------------------------------------------------------------------------------------------


def test_cancel_retry_delete(web: Web) -> None:
    job = web.add.enqueue(1)
    done = web.api("POST", f"/jobs/{job.id}/cancel", {"reason": "no longer wanted"})
    assert done.json() == {"id": job.id, "was": "ready"}
    again = web.api("POST", f"/jobs/{job.id}/cancel", {})
    assert (again.status_code, again.json()["code"]) == (409, "not-in-this-state")
    assert web.api("POST", f"/jobs/{job.id}/retry", {}).json()["was"] == "cancelled"
    assert web.api("DELETE", f"/jobs/{job.id}").json()["was"] == "ready"
    assert web.api("GET", f"/jobs/{job.id}").status_code == 404


def test_a_filter_acts_on_all_that_match_and_nothing_else(web: Web) -> None:
    web.app.enqueue_many([web.add.bind(n) for n in range(600)])
    other = web.mail.enqueue("ada")
    dry = web.api("POST", "/jobs:cancel", {"queue": "default", "dry_run": True})
    assert dry.status_code == 202
    assert settled(web, dry.json()["id"])["matched"] == 600
    done = web.api("POST", "/jobs:cancel", {"q": "task:shop.add", "reason": "all of them"})
    end = settled(web, done.json()["id"])
    assert (end["state"], end["matched"], end["acted"], end["refused"]) == ("done", 600, 600, 0)
    assert other.refresh().state is JobState.READY
    assert web.api("POST", "/jobs:retry", {"state": "cancelled"}).status_code == 202
    empty = web.api("POST", "/jobs:delete", {})
    assert (empty.status_code, empty.json()["code"]) == (422, "invalid")


def settled(web: Web, operation: str) -> dict[str, object]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found: dict[str, object] = web.api("GET", f"/operations/{operation}").json()
        if found["state"] != "running":
            return found
    raise AssertionError("the operation does not end")


def test_queues_are_paused_and_resumed(web: Web) -> None:
    web.add.enqueue(1)
    assert web.api("POST", "/queues/default/pause", {"reason": "deploy"}).status_code == 200
    queue = web.api("GET", "/queues/default").json()
    assert (queue["pause_reason"], queue["counts"]["ready"]) == ("deploy", 1)
    assert web.claim() == []
    assert web.api("GET", "/autoscale?queue=default").json()["value"] == 0
    web.api("POST", "/queues/default/resume", {})
    assert web.api("GET", "/autoscale").json() == {"value": 1, "busy_workers": 0, "workers": 1}
    assert len(web.claim()) == 1
    assert web.api("GET", "/queues/nowhere").status_code == 404


def test_the_scaler_is_never_below_the_workers_that_run_jobs(web: Web) -> None:
    driver = web.app.ready()
    for number in range(12):
        web.add.enqueue(number)
    for number, supervisor in enumerate(("a", "a", "b", "c")):
        session = NewSession(
            id=f"00000000-0000-4000-8000-00000000000{number}", worker=f"w-{number}", host="h", pid=1,
            release="1", queues=("default",), tasks=("shop.add",), slots=2,
            lease=timedelta(minutes=5), supervisor=supervisor,
        )  # fmt: skip
        driver.run(driver.start_session(session))
        if supervisor != "c":
            token = f"00000000-0000-4000-8000-00000000010{number}"
            claim = ClaimParams(session=session.id, token=token, queues=("default",), limit=1)
            assert len(driver.run(driver.claim(claim))) == 1
    assert web.api("GET", "/autoscale?queue=default&jobs_per_worker=20").json() == {
        "value": 12, "busy_workers": 2, "workers": 2
    }  # fmt: skip
    assert web.api("GET", "/autoscale?jobs_per_worker=5").json()["workers"] == 3
    assert web.api("GET", "/autoscale?jobs_per_worker=0").status_code == 422


# -- work --------------------------------------------------------------------------------------------


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
    import time

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
    import time

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


# -- the dead, numbers -------------------------------------------------------------------------------


def test_dead_jobs_are_grouped_and_replayed(web: Web) -> None:
    web.app.enqueue_many([web.add.bind(n) for n in range(3)])
    dead = finish_all_dead(web)
    [group] = web.api("GET", "/dead/groups").json()["groups"]
    assert (group["count"], group["error"]["type"], group["task"]) == (3, "Boom", "shop.add")
    dry = web.api("POST", "/dead:replay", {"group": group["group"], "dry_run": True}).json()
    assert (dry["state"], dry["matched"], dry["acted"]) == ("done", 3, 0)
    bad = web.api("POST", "/dead:replay", {"group": group["group"], "args": {"a": "x"}}).json()
    assert bad["state"] == "failed"
    done = web.api(
        "POST", "/dead:replay", {"group": group["group"], "args": {"a": 5}, "to_queue": "again"}
    ).json()
    assert (done["acted"], done["refused"]) == (3, 0)
    for job_id in dead:
        record = web.app.jobs.get(job_id).record
        assert (record.state, record.queue, record.args) == (JobState.READY, "again", '{"a":5}')


def test_stats_and_workers(web: Web) -> None:
    web.serve("default")
    web.add.enqueue(1)
    stats = web.api("GET", "/stats").json()
    assert (stats["jobs"]["ready"], stats["workers"], stats["slots"]) == (1, 1, 2)
    [worker] = web.api("GET", "/workers").json()["workers"]
    assert web.api("GET", f"/workers/{worker['id']}").json()["queues"] == ["default"]


def test_metrics_are_readable(web: Web) -> None:
    web.serve("default")
    web.app.enqueue_many([web.add.bind(1)])
    web.app.queues.pause('we"ird\\')
    text = web.ask("GET", "/metrics").text
    assert 'winch_queue_jobs{queue="default",state="ready"} 1' in text
    assert 'winch_queue_paused{queue="we\\"ird\\\\"} 1' in text
    assert 'winch_workers{state="live"} 1' in text


def test_probes(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite", auth="closed")
    assert web.ask("GET", "/livez").json()["status"] == "pass"
    assert web.ask("GET", "/readyz").json()["checks"]["schema"] == "pass"
    driver = web.app.ready()
    web.app.close()
    driver._address.path.write_bytes(b"not a database")  # type: ignore[attr-defined]
    answer = web.ask("GET", "/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "fail")
    assert web.ask("GET", "/livez").status_code == 200


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


def test_the_description_lets_clients_pass_any_arguments(make_web: Callable[..., Web]) -> None:
    schemas = make_web().api("GET", "/openapi.json").json()["components"]["schemas"]
    for name in ("NewJobBody", "NewScheduleBody", "ReplayBody"):
        args = schemas[name]["properties"]["args"]
        [one] = [part for part in args.get("anyOf", [args]) if part.get("type") == "object"]
        assert one["additionalProperties"] is True, name


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"])
def test_the_answer_to_an_enqueue_is_the_job_as_it_is_read(
    make_web: Callable[..., Web], store: str
) -> None:
    web = make_web(store)
    body = {"task": "shop.mail", "args": {"to": "a", "password": "secret"}, "tags": ["x"]}
    more = {"fifo": "k", "priority": "high", "headers": {"a": "1"}, "timeout": "5s"}
    for given in (body, body | more, body | {"delay": "1h"}, body | {"expires": "1h"}):
        made = web.api("POST", "/jobs", given).json()
        assert made == web.api("GET", f"/jobs/{made['id']}").json()
