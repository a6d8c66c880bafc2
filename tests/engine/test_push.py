"""`app.push`: the jobs of a queue, posted to a URL."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine.push_kit import OTHER, SECRET, Answer, Delivery, Receiver, receiving
from tests.engine.worker_kit import until
from winch import App, ConfigError, Job, Retry
from winch.engine.base import http_post

SCHEMA = {"properties": {"to": {"type": "string"}, "n": {"type": "integer"}}, "required": ["n"]}
SOON = Retry.fixed("20ms", attempts=3, jitter="none")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def target() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


class Mail:
    """An app whose queue `mail` is pushed to a receiver."""

    def __init__(self, url: str, receiver: Receiver, **given: Any) -> None:
        settings = given.pop("settings", {})
        self.app = App(url, poll="50ms", sweep="200ms", **settings)
        self.app.driver.migrate()
        options = {"url": receiver.url, "secret": SECRET, "allow_private": True, "retry": SOON, **given}
        self.app.push("mail", **options)
        self.send = self.app.declare("node.send", SCHEMA, queue="mail")

    def run(self) -> None:
        """Until no job waits: a burst may end before a retry is due."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            self.app.run_worker(burst=True, queues=["mail"])
            live = ["ready", "scheduled", "retrying", "blocked", "running"]
            if not self.app.jobs.list(state=live, limit=1):
                return
            time.sleep(0.02)

    def state(self, job: Job[Any]) -> str:
        return str(job.refresh().state)


@pytest.fixture
def mail(store_url: str, target: Receiver) -> Iterator[Mail]:
    made = Mail(store_url, target)
    yield made
    made.app.close()


# -- on every store ----------------------------------------------------------------------------------


def test_a_job_is_one_signed_request(mail: Mail, target: Receiver) -> None:
    headers = {"traceparent": TRACE, "tracestate": "x=1", "note": "é"}
    job = mail.send.using(headers=headers).enqueue(n=7, to="ann@example.com")
    mail.run()
    assert mail.state(job) == "completed"
    [got] = target.got
    assert got.headers["webhook-id"] == got.job == got.body["id"] == job.id
    assert got.headers["winch-attempt"] == "1"
    assert got.headers["traceparent"] == TRACE
    assert got.headers["tracestate"] == "x=1"
    assert got.headers["content-type"].startswith("application/json")
    assert got.body["args"] == {"n": 7, "to": "ann@example.com"}
    assert (got.body["task"], got.body["queue"], got.body["version"]) == ("node.send", "mail", 1)
    assert (got.body["attempt"], got.body["token"]) == (1, got.token)
    assert got.body["headers"]["note"] == "é"
    assert target.unsigned == 0


def test_a_refusal_is_a_failed_attempt(mail: Mail, target: Receiver) -> None:
    """Each attempt has the same id, its own number and its own token; the last one is the end."""
    target.answer = lambda got: Answer(500)
    job = mail.send.enqueue(n=1)
    mail.run()
    assert mail.state(job) == "dead"
    found = target.of(job.id)
    assert [one.attempt for one in found] == [1, 2, 3]
    assert len({one.token for one in found}) == 3
    fences = [int(one.headers["winch-fence"]) for one in found]
    assert fences == sorted(set(fences))
    error = job.record.error
    assert error is not None
    assert (error.name, error.message) == ("DeliveryRefused", "127.0.0.1 answered 500")


def test_retry_after_is_honoured(mail: Mail, target: Receiver) -> None:
    """In seconds, and as a date by the clock of the receiver, which here is an hour behind."""

    def answer(got: Delivery) -> Answer:
        now = time.time() - 3600
        by_date = {"Date": formatdate(now, usegmt=True), "Retry-After": formatdate(now + 2, usegmt=True)}
        return {1: Answer(429, {"Retry-After": "1"}), 2: Answer(503, by_date)}.get(got.attempt, Answer())

    target.answer = answer
    job = mail.send.enqueue(n=1)
    mail.run()
    assert mail.state(job) == "completed"
    first, second, third = target.of(job.id)
    assert 1.0 <= second.at - first.at < 15
    assert 2.0 <= third.at - second.at < 15


def test_no_answer_in_time_is_a_failed_attempt(store_url: str, target: Receiver) -> None:
    mail = Mail(store_url, target, timeout="300ms")
    target.answer = lambda got: Answer(after=1.5 if got.attempt == 1 else 0.0)
    job = mail.send.enqueue(n=1)
    mail.run()
    assert mail.state(job) == "completed"
    first, second = target.of(job.id)
    assert first.token != second.token
    assert second.at - first.at < 1.5
    error = job.record.error
    assert error is not None
    assert (error.name, error.message) == ("TimeoutError", "127.0.0.1 did not answer within 0.3 s")
    mail.app.close()


def test_the_lease_is_kept_while_the_receiver_works(store_url: str, target: Receiver) -> None:
    """The receiver takes three leases; the rescuer looks at every fifth of one."""
    mail = Mail(store_url, target, settings={"lease": "1s", "heartbeat": "200ms"})
    target.answer = lambda _: Answer(after=3.0)
    job = mail.send.enqueue(n=1)
    mail.run()
    assert (mail.state(job), len(target.got)) == ("completed", 1)
    mail.app.close()


def test_a_repeat_differs_from_a_new_job(mail: Mail, target: Receiver) -> None:
    """The receiver runs a job and its answer is lost. The job comes again, under the same id and another
    token, and the receiver does not run it a second time."""
    ran: list[str] = []

    def answer(got: Delivery) -> Answer:
        if got.job in ran:
            return Answer()
        ran.append(got.job)
        return Answer(is_cut=True)

    target.answer = answer
    jobs = [mail.send.enqueue(n=n) for n in range(5)]
    mail.run()
    assert {mail.state(job) for job in jobs} == {"completed"}
    assert sorted(ran) == sorted(job.id for job in jobs)
    assert [len(target.of(job.id)) for job in jobs] == [2] * 5
    assert len({(one.job, one.token) for one in target.got}) == 10


APP = """
    from winch import App, Retry

    app = App(lease="2s", heartbeat="200ms", sweep="200ms", poll="100ms", concurrency=4)
    app.push(
        "mail", url={url!r}, secret={secret!r}, allow_private=True, timeout="20s",
        retry=Retry.fixed("50ms", attempts=20),
    )
"""


@contextmanager
def pusher(
    url: str, folder: Path, receiver: Receiver, *argv: str, number: int = 0
) -> Iterator[subprocess.Popen[bytes]]:
    """`winch worker -Q mail`, or `winch serve --push`, as a process of its own."""
    text = textwrap.dedent(APP).format(url=receiver.url, secret=SECRET)
    (folder / "shop.py").write_text(text)
    env = {key: value for key, value in os.environ.items() if not key.startswith("WINCH_")}
    with (folder / f"pusher-{number}.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "winch", *argv, "-A", "shop:app"],
            cwd=folder,
            env=env | {"WINCH_URL": url, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9, at once for the process and all below it."""
    found = psutil.Process(process.pid)
    for one in [found, *found.children(recursive=True)]:
        one.send_signal(signal.SIGKILL)
    process.wait(10)


@pytest.mark.servers
@pytest.mark.parametrize("command", ["worker", "serve"])
def test_a_killed_server_loses_nothing(
    command: str, store_url: str, target: Receiver, tmp_path: Path
) -> None:
    """kill -9 while requests wait for their answers, and a receiver that falters: every job is run, and
    what comes twice is recognised."""
    argv = ["worker", "-Q", "mail"] if command == "worker" else ["serve", "--push", "--port", "0"]
    mail = Mail(store_url, target, settings={"lease": "2s", "heartbeat": "200ms"})
    ran: set[str] = set()
    repeats: list[Delivery] = []

    def answer(got: Delivery) -> Answer:
        with target.guard:
            if len(target.got) % 7 == 0:
                return Answer(503, {"Retry-After": "0"})
            if got.job in ran:
                repeats.append(got)
                return Answer()
            ran.add(got.job)
        return Answer(after=0.1)

    target.answer = answer
    jobs = mail.app.enqueue_many([mail.send.bind(n=n) for n in range(60)])
    with pusher(store_url, tmp_path, target, *argv) as first:
        until(lambda: len(ran) >= 12, "the first jobs")
        kill(first)
    at_kill = len(target.got)
    assert at_kill < 60
    with pusher(store_url, tmp_path, target, *argv, number=1):
        until(lambda: all(mail.state(job) == "completed" for job in jobs), "all jobs", 60)
    assert ran == {job.id for job in jobs}
    assert repeats, "requests waited for their answers when the server was killed"
    assert target.unsigned == 0
    keys = [(one.job, one.attempt, one.token) for one in target.got]
    assert len(set(keys)) == len(keys)
    mail.app.close()


# -- on one store ------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/winch.db"


def test_a_wrong_secret_is_refused(path: str) -> None:
    """The check of signatures in these tests can fail."""
    with receiving(OTHER) as receiver:
        mail = Mail(path, receiver)
        job = mail.send.enqueue(n=1)
        mail.run()
        assert (mail.state(job), receiver.unsigned, receiver.got) == ("dead", 3, [])
        mail.app.close()


def test_two_secrets_sign_while_one_is_replaced(path: str) -> None:
    with receiving(OTHER) as receiver:
        mail = Mail(path, receiver, secret=[SECRET, OTHER])
        job = mail.send.enqueue(n=1)
        mail.run()
        assert (mail.state(job), receiver.unsigned) == ("completed", 0)
        mail.app.close()


def test_status_410_kills_the_job(path: str, target: Receiver) -> None:
    mail = Mail(path, target)
    target.answer = lambda _: Answer(410)
    job = mail.send.enqueue(n=1)
    mail.run()
    assert (mail.state(job), len(target.got)) == ("dead", 1)
    mail.app.close()


def test_a_redirect_is_not_followed(path: str, target: Receiver) -> None:
    with receiving() as elsewhere:
        mail = Mail(path, target, retry=Retry(attempts=1))
        target.answer = lambda _: Answer(307, {"Location": elsewhere.url})
        job = mail.send.enqueue(n=1)
        mail.run()
        assert (mail.state(job), len(target.got), len(elsewhere.got)) == ("dead", 1, 0)
        mail.app.close()


def test_an_address_that_is_not_public_is_not_called(
    path: str, target: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is good; the address that it has when the job runs is not."""
    asked: list[str] = []

    async def lookup(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["93.184.216.34", "169.254.169.254"]

    monkeypatch.setattr(http_post.post, "__kwdefaults__", {"lookup": lookup})
    app = App(path)
    app.driver.migrate()
    app.push("mail", url="https://mail.example.com/run", secret=SECRET, retry=Retry(attempts=1))
    job = app.declare("node.send", SCHEMA, queue="mail").enqueue(n=1)
    app.run_worker(burst=True, queues=["mail"])
    assert asked == ["mail.example.com"]
    assert job.refresh().state == "dead"
    assert "169.254.169.254, which is not on the open internet" in str(job.record.error)
    app.close()


def test_a_cancel_ends_the_request(path: str, target: Receiver) -> None:
    mail = Mail(path, target)
    target.answer = lambda _: Answer(after=20)
    job = mail.send.enqueue(n=1)

    async def main() -> None:
        async with mail.app.worker(queues=["mail"]):
            await asyncio.to_thread(until, lambda: target.got, "the request")
            await mail.app.jobs.acancel(job.id)
            await asyncio.to_thread(until, lambda: mail.state(job) == "cancelled", "the cancel", 10)

    asyncio.run(main())
    mail.app.close()


def test_the_policy_of_a_known_task_counts(path: str, target: Receiver) -> None:
    """Where the target has none of its own; and the job's own comes first."""
    mail = Mail(path, target, retry=None)
    target.answer = lambda _: Answer(500)
    known = mail.app.declare("node.known", SCHEMA, queue="mail", retry=Retry.fixed("10ms", attempts=2))
    first = known.enqueue(n=1)
    second = known.using(retry=Retry(attempts=1)).enqueue(n=2)
    mail.run()
    assert [len(target.of(job.id)) for job in (first, second)] == [2, 1]
    mail.app.close()


def test_a_member_of_a_flow_gets_the_result_before_it(path: str, target: Receiver) -> None:
    from winch import chain

    mail = Mail(path, target)

    @mail.app.task(name="shop.count")
    def count() -> dict[str, str]:
        return {"a": "line\nbreak"}

    later = chain(count.bind(), mail.send.partial(to="x")).enqueue()
    mail.app.run_worker(burst=True)
    mail.run()
    [got] = target.got
    assert got.body["input"] == {"a": "line\nbreak"}
    assert got.body["args"] == {"to": "x"}
    assert later is not None
    mail.app.close()


def test_encrypted_arguments_are_sent_in_plain(path: str, target: Receiver) -> None:
    from winch import Keyring

    key = os.urandom(32)
    mail = Mail(path, target, settings={"keys": Keyring({"a": key}, current="a")})
    mail.send.enqueue(n=1, to="secret")
    mail.run()
    assert target.got[0].body["args"] == {"n": 1, "to": "secret"}
    mail.app.close()


def test_a_task_that_no_code_knows_is_pushed(path: str, target: Receiver) -> None:
    producer = App(path)
    producer.driver.migrate()
    job = producer.declare("somewhere.else", SCHEMA, queue="mail").enqueue(n=1)
    mail = Mail(path, target)
    mail.run()
    assert job.refresh().state == "completed"
    producer.close()
    mail.app.close()


def test_a_worker_pushes_or_runs(path: str, target: Receiver) -> None:
    """A worker of all queues leaves those that are pushed to workers of their own."""
    mail = Mail(path, target)
    job = mail.send.enqueue(n=1)

    @mail.app.task(name="shop.here", queue="here")
    def here() -> int:
        return 1

    ran, pushed = here.enqueue(), here.using(queue="mail").enqueue()
    with pytest.raises(ConfigError, match=r"'mail' is pushed to a URL, and queue 'here' is not"):
        mail.app.run_worker(burst=True, queues=["mail", "here"])
    with pytest.raises(ConfigError, match=r"'mail' is pushed to a URL, and queue '\*' is not"):
        mail.app.run_worker(burst=True, queues={"*": 1, "mail": 1})
    mail.app.run_worker(burst=True, queues=["*"])
    assert [mail.state(one) for one in (job, pushed, ran)] == ["ready", "ready", "completed"]
    mail.run()
    assert [mail.state(one) for one in (job, pushed)] == ["completed", "completed"]
    assert len(target.got) == 2
    mail.app.close()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"url": "http://a.example/"}, r"must begin with https://, got 'http'; app\.push\(…, allow_private"),
    ({"url": "https://a.example:22/"}, "a push target may use the ports 443, 8443, got 22"),
    ({"url": "https://me:pw@a.example/"}, "takes no user, password"),
    ({"secret": "hunter2"}, "the secret of a push target is 'whsec_'"),
    ({"secret": []}, "give a secret"),
    ({"timeout": "31m"}, "up to 30m"),
    ({"timeout": "0s"}, "up to 30m"),
]


@pytest.mark.parametrize("given, why", BAD)
def test_invalid_targets_are_refused(given: dict[str, Any], why: str) -> None:
    app = App("memory://")
    with pytest.raises(ConfigError, match=why) as raised:
        app.push("mail", **{"url": "https://a.example/", "secret": SECRET, **given})
    assert "hunter2" not in str(raised.value)


def test_a_queue_has_one_target() -> None:
    app = App("memory://")
    app.push("mail", url="https://a.example/", secret=SECRET)
    with pytest.raises(ConfigError, match="pushed to a URL already"):
        app.push("mail", url="https://b.example/", secret=SECRET)
