"""Workers over HTTP with a session: claims and ends in batches, heartbeats, orders, what is lost."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.web.conftest import STORES
from tests.web.kit import LoopThread, Web
from tests.web.server import serving
from winch import App, JobState, Keyring
from winch.web.mount import build
from winch.web.site import SiteConfig

MakeWeb = Callable[..., Web]


class Worker:
    """A client that works over HTTP."""

    def __init__(self, web: Web, token: str | None = None, **more: Any) -> None:
        self.web, self.token = web, token
        body = {"worker": "w", "queues": ["default"], **more}
        answer = web.api("POST", "/sessions", body, token=token)
        assert answer.status_code == 201, answer.text
        self.about: dict[str, Any] = answer.json()
        self.key: str = self.about["key"]

    def ask(self, path: str, body: Any = None, method: str = "POST") -> httpx.Response:
        return self.web.api(method, f"/sessions/{self.key}{path}", body, token=self.token)

    def did(self, path: str, body: Any = None, method: str = "POST") -> Any:
        answer = self.ask(path, body, method)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def claim(self, **more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.did("/claim", more)["jobs"]
        return found

    def finish(self, *outcomes: dict[str, Any], **more: Any) -> list[str]:
        answers = self.did("/finish", {"outcomes": list(outcomes), **more})["answers"]
        return [one["answer"] for one in answers]

    def beat(self, *running: dict[str, Any], **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.did("/heartbeat", {"running": list(running), **more})
        return found


def ref(job: dict[str, Any]) -> dict[str, Any]:
    return {"id": job["id"], "token": job["token"]}


def end(job: dict[str, Any], outcome: str, **more: Any) -> dict[str, Any]:
    return {**ref(job), "outcome": outcome, **more}


@contextmanager
def calls_of(app: App) -> Iterator[Counter[str]]:
    """The verbs that the server sends to the store meanwhile."""
    driver = app.ready()
    counted: Counter[str] = Counter()
    real = driver.arun

    async def arun(verb: Any) -> Any:
        counted[verb.name] += 1
        return await real(verb)

    driver.arun = arun  # type: ignore[method-assign]
    try:
        yield counted
    finally:
        driver.arun = real  # type: ignore[method-assign]


@pytest.mark.parametrize("store", STORES)
def test_every_outcome_in_one_call(make_web: MakeWeb, store: str) -> None:
    web = make_web(store)
    worker = Worker(web, slots=10)
    ids = [web.add.enqueue(number).id for number in range(7)]
    jobs = worker.claim(max=10)
    assert [job["id"] for job in jobs] == ids
    assert {job["attempt"] for job in jobs} == {1}
    outcomes = [
        end(jobs[0], "complete", result=7),
        end(jobs[1], "fail", error={"type": "ValueError", "message": "no"}),
        end(jobs[2], "retry", delay="1h", reason="later"),
        end(jobs[3], "snooze", delay="2h"),
        end(jobs[4], "release"),
        end(jobs[5], "cancel", reason="not wanted"),
        end(jobs[6], "discard", reason="nonsense"),
    ]
    assert worker.finish(*outcomes) == ["took"] * 7
    assert worker.finish(*outcomes) == ["already"] * 7
    other = [{**one, "outcome": "complete"} for one in outcomes[1:]]
    assert (
        worker.finish(*[{k: one[k] for k in ("id", "token", "outcome")} for one in other])
        == ["lost"] * 6
    )
    records = [web.app.jobs.get(one).record for one in ids]
    assert [one.state for one in records] == [
        JobState.COMPLETED, JobState.RETRYING, JobState.RETRYING, JobState.SCHEDULED, JobState.READY,
        JobState.CANCELLED, JobState.DEAD,
    ]  # fmt: skip
    assert web.app.jobs.get(ids[0]).result() == 7
    assert [one.attempt for one in records] == [1, 1, 1, 0, 0, 1, 1]
    assert records[1].error is not None
    assert (records[1].error.type, records[1].error.message) == ("ValueError", "no")
    later = records[2].run_at - records[2].created_at
    assert timedelta(minutes=59) < later < timedelta(minutes=61)


@pytest.mark.parametrize("store", STORES)
def test_a_batch_of_fifty_costs_three_calls_of_the_store(make_web: MakeWeb, store: str) -> None:
    web = make_web(store)
    worker = Worker(web, slots=50)
    for number in range(100):
        web.add.enqueue(number)
    with calls_of(web.app) as counted:
        jobs = worker.claim(max=50)
        answer = worker.did(
            "/finish",
            {"outcomes": [end(job, "complete", result=1) for job in jobs], "claim": {"max": 50}},
        )
    assert len(jobs) == len(answer["jobs"]) == 50
    assert counted == {"claim": 2, "finish": 1}
    assert counted.total() <= 2 * 50
    # Another server of the same store, or this one after a restart, reads the jobs once.
    with calls_of(web.app) as counted:
        other = Web.__new__(Web)
        other.__dict__.update(web.__dict__)
        config = SiteConfig(auth="open", hosts=frozenset({"localhost"}))
        worker.web, other.asgi = other, build(web.app, config)
        assert set(worker.finish(*[end(job, "complete") for job in answer["jobs"]])) == {"took"}
    assert counted == {"get": 1, "finish": 1}
    assert worker.claim(max=50) == []  # it knows the session's queues from the store


@pytest.mark.parametrize("store", STORES)
def test_an_end_of_the_session_returns_its_jobs_at_once(make_web: MakeWeb, store: str) -> None:
    web = make_web(store)
    worker = Worker(web)
    ids = {web.add.enqueue(number).id for number in range(3)}
    worker.claim(max=3)
    assert worker.did("", None, "DELETE") == {"returned": 3}
    assert {web.app.jobs.get(one).state for one in ids} == {JobState.READY}
    answer = worker.ask("/claim", {})
    assert (answer.status_code, answer.json()["code"]) == (404, "session-ended")
    assert worker.ask("/heartbeat", {}).status_code == 404
    assert worker.ask("", None, "DELETE").status_code == 404
    again = web.api("POST", "/sessions", {"worker": "w", "queues": ["default"], "key": worker.key})
    assert again.status_code == 404  # a session that has ended does not begin again
    assert {job["id"] for job in Worker(web).claim(max=3)} == ids


@pytest.mark.parametrize("store", STORES)
def test_a_claim_for_an_ended_session_is_refused_with_its_reason(make_web: MakeWeb, store: str) -> None:
    web = make_web(store)
    worker = Worker(web)
    driver = web.app.ready()
    driver.run(driver.end_session(worker.about["id"]))  # as a sweeper does
    web.add.enqueue(1)
    answer = worker.ask("/claim", {})
    assert (answer.status_code, answer.json()["code"]) == (404, "session-ended")


@pytest.mark.parametrize("store", STORES)
def test_a_heartbeat_reports_cancelled_lost_and_unlisted_claims(make_web: MakeWeb, store: str) -> None:
    web = make_web(store)
    worker = Worker(web)
    ids = [web.add.enqueue(number).id for number in range(3)]
    token = str(uuid.uuid4())
    one, two, three = worker.claim(max=3, claim=token)
    assert {job["token"] for job in (one, two, three)} == {token}
    web.app.jobs.cancel(ids[0])
    assert worker.finish(end(two, "release")) == ["took"]
    found = worker.beat(ref(one), ref(two))
    assert found["cancelled"] == [ref(one)]
    assert found["lost"] == [ref(two)]
    assert found["unlisted"] == [ref(three)]  # as if the reply of its claim had been lost
    assert worker.finish(end(three, "release"), end(one, "cancel")) == ["took", "took"]
    assert worker.beat() | {"now": ""} == {
        "now": "", "cancelled": [], "lost": [], "unlisted": [], "orders": [],
    }  # fmt: skip


@pytest.mark.parametrize("store", STORES)
def test_registering_again_with_the_same_key_changes_nothing(make_web: MakeWeb, store: str) -> None:
    web = make_web(store)
    worker = Worker(web)
    web.add.enqueue(1)
    [job] = worker.claim()
    again = Worker(web, key=worker.key)
    assert again.about["id"] == worker.about["id"]
    assert again.finish(end(job, "complete")) == ["took"]
    live = [one for one in web.app.workers.list() if one.id == worker.about["id"]]
    assert len(live) == 1


@pytest.mark.parametrize("store", STORES)
def test_a_waiting_claim_is_answered_at_once(make_web: MakeWeb, store: str) -> None:
    web = make_web(store)
    worker = Worker(web)
    answers: list[tuple[float, list[dict[str, Any]]]] = []

    def wait() -> None:
        found = worker.claim(wait="30s")
        answers.append((time.monotonic(), found))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    sent = time.monotonic()
    job = web.add.enqueue(1)
    thread.join(timeout=40)
    [(at, found)] = answers
    assert [one["id"] for one in found] == [job.id]
    assert at - sent < 1.9  # woken, not at its next look


@pytest.mark.parametrize("store", STORES)
def test_notes_and_the_checkpoint_of_the_attempt_before(make_web: MakeWeb, store: str) -> None:
    web = make_web(store)
    worker = Worker(web)
    job = web.add.enqueue(1)
    [one] = worker.claim()
    noted = {**ref(one), "progress": {"done": 3}, "checkpoint": [1, 2], "log": "half way"}
    stale = {"id": str(uuid.uuid4()), "token": str(uuid.uuid4()), "progress": 1}
    answers = worker.did("/notes", {"notes": [noted, stale]})["answers"]
    assert [one["answer"] for one in answers] == ["took", "lost"]
    assert worker.finish(end(one, "release", has_started=True)) == ["took"]
    [again] = worker.claim()
    assert (again["id"], again["checkpoint"], again["fence"] > one["fence"]) == (job.id, [1, 2], True)
    answers = worker.did("/notes", {"notes": [{**ref(one), "progress": 9}]})["answers"]
    assert [one["answer"] for one in answers] == ["lost"]


@pytest.mark.parametrize("store", STORES)
def test_children_are_stored_once_and_only_by_a_live_claim(make_web: MakeWeb, store: str) -> None:
    web = make_web(store)
    worker = Worker(web)
    web.add.enqueue(1)
    [parent] = worker.claim()
    body = {
        "parent": ref(parent),
        "jobs": [{"task": "shop.add", "args": {"a": n}} for n in (2, 3)],
    }
    first = worker.did("/children", body)["jobs"]
    again = worker.did("/children", body)["jobs"]
    assert [one["is_new"] for one in first] == [True, True]
    assert [one["is_new"] for one in again] == [False, False]
    assert [one["id"] for one in first] == [one["id"] for one in again]
    assert worker.finish(end(parent, "complete")) == ["took"]
    late = worker.ask("/children", {**body, "name": "late"})
    assert (late.status_code, late.json()["code"]) == (409, "lost-claim")
    assert {job["id"] for job in worker.claim(max=9)} == {one["id"] for one in first}


@pytest.mark.parametrize("store", STORES)
def test_orders_come_with_the_heartbeat_until_they_are_answered(make_web: MakeWeb, store: str) -> None:
    web = make_web(store)
    worker = Worker(web)
    identity = worker.about["id"]
    sent = web.api("POST", f"/workers/{identity}/quiet", {})
    assert sent.status_code == 202, sent.text
    [order] = worker.beat()["orders"]
    assert (order["do"], order["by"]) == ("quiet", "local")
    assert [one["id"] for one in worker.beat()["orders"]] == [order["id"]]
    answer = {"id": order["id"], "state": "done", "text": "claims nothing"}
    assert worker.beat(answers=[answer])["orders"] == []
    assert worker.beat()["orders"] == []
    found = web.api("GET", f"/workers/{identity}/commands/{sent.json()['id']}").json()
    assert (found["state"], found["text"]) == ("done", "claims nothing")


@pytest.mark.parametrize("store", STORES)
def test_a_flow_over_http_hands_results_on(make_web: MakeWeb, store: str) -> None:
    import winch

    web = make_web(store)
    worker = Worker(web)
    winch.chain(web.add.bind(1, 2), web.add.partial(b=5)).enqueue()
    [first] = worker.claim(max=5)
    assert worker.finish(end(first, "complete", result=3)) == ["took"]
    deadline = time.monotonic() + 20
    found: list[dict[str, Any]] = []
    while not found and time.monotonic() < deadline:
        web.app.client.run(_unblocked(web))
        found = worker.claim(max=5)
    assert [job["args"] for job in found] == [{"a": 3, "b": 5}]


def _unblocked(web: Web) -> Any:
    yield web.app.driver.unblock()


# -- access ----------------------------------------------------------------------------------------


def test_a_session_belongs_to_its_credential(make_web: MakeWeb) -> None:
    web = make_web("memory", auth="tokens")
    mine, other = web.token("work"), web.token("work")
    worker = Worker(web, mine)
    web.add.enqueue(1)
    [job] = worker.claim()
    worker.token = other
    nothing: dict[str, Any] = {"outcomes": [], "claim": {}}
    for path, body in (("/claim", {}), ("/heartbeat", {}), ("/finish", nothing)):
        answer = worker.ask(path, body)
        assert (answer.status_code, answer.json()["code"]) == (404, "session-ended"), path
    # With a session of its own and the token of the claim, too.
    thief = Worker(web, other)
    assert thief.finish(end(job, "complete")) == ["lost"]
    answers = thief.did("/notes", {"notes": [{**ref(job), "progress": 1}]})["answers"]
    assert answers[0]["answer"] == "lost"
    worker.token = mine
    assert worker.finish(end(job, "complete")) == ["took"]


def test_a_narrowed_token_gets_its_queues_and_tasks_only(make_web: MakeWeb) -> None:
    web = make_web("memory", auth="tokens")
    token = web.token("work", queues=("default", "mail"), tasks=("shop.add",))
    assert (
        web.api("POST", "/sessions", {"worker": "w", "queues": ["other"]}, token=token).status_code
        == 404
    )
    body = {"worker": "w", "queues": ["mail"], "tasks": ["shop.mail"]}
    assert web.api("POST", "/sessions", body, token=token).status_code == 403
    assert web.api("POST", "/sessions", body, token=web.token("work", tenant="t")).status_code == 403
    web.mail.enqueue("a")
    own = web.add.using(queue="mail").enqueue(1)
    worker = Worker(web, token, queues=["mail", "default"], tasks=["shop.add", "shop.mail"])
    assert [job["id"] for job in worker.claim(max=5)] == [own.id]
    assert worker.ask("/claim", {"queues": ["other"]}).status_code == 422


def test_children_need_the_right_to_enqueue(make_web: MakeWeb) -> None:
    web = make_web("memory", auth="tokens")
    worker = Worker(web, web.token("work"))
    web.add.enqueue(1)
    [job] = worker.claim()
    body = {"parent": ref(job), "jobs": [{"task": "shop.add", "args": {"a": 1}}]}
    assert worker.ask("/children", body).status_code == 403
    both = Worker(web, web.token("work", "enqueue"))
    assert worker.finish(end(job, "release")) == ["took"]
    [job] = both.claim()
    assert both.ask("/children", {**body, "parent": ref(job)}).status_code == 202


def test_children_of_a_narrowed_worker_name_no_job_that_it_must_not_see(make_web: MakeWeb) -> None:
    web = make_web("memory", auth="tokens")
    token = web.token("work", "enqueue", queues=("default",))
    worker = Worker(web, token)
    held = web.add.using(queue="mail", unique="the-one").enqueue(7)
    web.add.enqueue(1)
    [job] = worker.claim()
    child = {"task": "shop.add", "args": {"a": 1}, "unique": "the-one"}
    answer = worker.ask("/children", {"parent": ref(job), "jobs": [child]})
    assert held.id not in answer.text
    assert (answer.status_code, answer.json()["code"]) == (409, "duplicate")


@pytest.mark.parametrize("store", STORES)
def test_a_worker_of_some_queues_takes_no_task_away_by_a_contract(make_web: MakeWeb, store: str) -> None:
    """A contract names the queue to which producers send the task: one of its worker's own."""
    web = make_web(store, auth="tokens")
    contract = {"task": "bill.charge", "schema": {"type": "object"}, "queue": "billing"}
    Worker(web, web.token("work"), queues=["billing"], contracts=[contract])
    narrow = web.token("work", queues=("evil",))
    body = {"worker": "w", "queues": ["evil"], "contracts": [{**contract, "queue": "evil"}]}
    answer = web.api("POST", "/sessions", body, token=narrow)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    producer = web.token("enqueue", "read")
    made = web.api("POST", "/jobs", {"task": "bill.charge"}, token=producer).json()
    assert made["queue"] == "billing"
    own = {**contract, "task": "evil.task", "queue": "evil"}
    for _ in range(2):
        again = web.api("POST", "/sessions", {**body, "contracts": [own]}, token=narrow)
        assert again.status_code == 201


@pytest.mark.parametrize("store", STORES)
def test_a_job_whose_key_is_not_here_waits_and_holds_no_other_back(
    make_web: MakeWeb, store: str
) -> None:
    web = make_web(store)
    runtime = web.app.runtime
    keys, runtime.keys = runtime.keys, lambda: Keyring({"k": b"k" * 32})
    hidden = [web.add.enqueue(1), web.add.enqueue(2)]
    runtime.keys = keys
    readable = [web.add.enqueue(3), web.add.enqueue(4)]
    assert [job["id"] for job in Worker(web).claim(max=1)] == [readable[0].id]
    [other] = web.claim(max=4)
    assert other["id"] == readable[1].id
    for job in hidden:
        record = job.refresh().record
        assert (record.state, record.attempt) == ("scheduled", 0)
        assert str(record.reason).startswith("waits for a worker that can read it: it is encrypted")


def test_one_job_has_one_outcome_in_a_request(make_web: MakeWeb) -> None:
    web = make_web("memory")
    worker = Worker(web)
    web.add.enqueue(1)
    [job] = worker.claim()
    answer = worker.ask("/finish", {"outcomes": [end(job, "complete"), end(job, "release")]})
    assert answer.status_code == 422
    assert worker.finish(end(job, "complete")) == ["took"]


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_a_session_outlives_its_server(
    url_of: Callable[[str], str], store: str, runner: LoopThread
) -> None:
    url = url_of(store)
    first = App(url)
    first.migrate()

    @first.task(name="shop.add")
    def add(a: int) -> int:
        return a

    job = add.enqueue(1)
    session = {"worker": "w", "queues": ["default"], "lease": "60s"}
    with serving(first) as address:
        api = f"{address}/api/v1/sessions"
        key = httpx.post(api, json=session).json()["key"]
        [claimed] = httpx.post(f"{api}/{key}/claim", json={}).json()["jobs"]
    second = App(url)
    with serving(second) as address:
        api = f"{address}/api/v1/sessions/{key}"
        beat = httpx.post(f"{api}/heartbeat", json={"running": [ref(claimed)]}).json()
        assert (beat["lost"], beat["unlisted"]) == ([], [])
        done = httpx.post(f"{api}/finish", json={"outcomes": [end(claimed, "complete")]}).json()
    assert done["answers"] == [{"id": job.id, "answer": "took"}]


# -- contracts -------------------------------------------------------------------------------------

CONTRACT = {
    "task": "node.resize",
    "schema": {"properties": {"width": {"type": "integer"}}, "required": ["width"]},
    "queue": "images",
    "attempts": 2,
    "timeout": "5s",
}


@pytest.mark.parametrize("store", STORES)
def test_any_producer_enqueues_a_declared_task_by_its_schema(make_web: MakeWeb, store: str) -> None:
    web = make_web(store)
    body = {"task": "node.resize", "args": {"width": 5}}
    assert web.api("POST", "/jobs", body).status_code == 422
    worker = Worker(web, queues=["images"], tasks=["node.resize"], contracts=[CONTRACT])
    made = web.api("POST", "/jobs", body)
    assert made.status_code == 202, made.text
    assert (made.json()["queue"], made.json()["max_attempts"]) == ("images", 2)
    wrong = web.api("POST", "/jobs", {"task": "node.resize", "args": {"width": "5"}})
    assert (wrong.status_code, wrong.json()["detail"]) == (
        422, "node.resize: args.width must be integer, got string",
    )  # fmt: skip
    # From Python, declared by its own words; and the worker's contract outlives the worker.
    resize = web.app.declare("node.resize", CONTRACT["schema"], queue="images")  # type: ignore[arg-type]
    resize.enqueue(width=6)
    assert [job["args"] for job in worker.claim(max=5)] == [{"width": 5}, {"width": 6}]
    worker.did("", None, "DELETE")
    more = web.api("POST", "/jobs", {**body, "queue": "other"})
    assert (more.status_code, more.json()["queue"]) == (202, "other")


@pytest.mark.parametrize(
    "change",
    [{"schema": {"type": "array"}}, {"schema": {"pattern": "(a+)+"}}, {"attempts": 0}, {"timeout": "x"},
     {"queue": "a/b c\n"}],
)  # fmt: skip
def test_a_contract_that_cannot_hold_is_refused(make_web: MakeWeb, change: dict[str, Any]) -> None:
    web = make_web("memory")
    body = {"worker": "w", "queues": ["images"], "contracts": [{**CONTRACT, **change}]}
    assert web.api("POST", "/sessions", body).status_code == 422


def test_a_narrowed_token_declares_its_own_tasks_only(make_web: MakeWeb) -> None:
    web = make_web("memory", auth="tokens")
    body = {"worker": "w", "queues": ["images"], "contracts": [CONTRACT]}
    token = web.token("work", tasks=("other.task",))
    assert web.api("POST", "/sessions", body, token=token).status_code == 403
    token = web.token("work", queues=("images",))
    other = {**CONTRACT, "queue": "mail"}
    assert web.api("POST", "/sessions", {**body, "contracts": [other]}, token=token).status_code == 404
    assert web.api("POST", "/sessions", body, token=token).status_code == 201


def test_a_server_that_stops_answers_a_waiting_claim(url_of: Callable[[str], str]) -> None:
    app = App(url_of("sqlite"))
    app.migrate()
    answers: list[httpx.Response] = []
    with serving(app, grace=20) as address:
        api = f"{address}/api/v1/sessions"
        key = httpx.post(api, json={"worker": "w", "queues": ["default"]}).json()["key"]

        def wait() -> None:
            answers.append(httpx.post(f"{api}/{key}/claim", json={"wait": "60s"}, timeout=90))

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(1)
        began = time.monotonic()
    thread.join(timeout=30)
    assert [one.json() for one in answers] == [{"jobs": []}]
    assert time.monotonic() - began < 19
