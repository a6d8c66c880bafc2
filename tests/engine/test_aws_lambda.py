"""`winch.integrations.aws_lambda`, under AWS's own runtime client and a Runtime API on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.lambda_kit import ARN, FunctionFailed, Messages, function
from tests.engine.worker_kit import until
from winch import App, ConfigError
from winch.integrations import aws_lambda

CODE = """
    import asyncio, os
    from pathlib import Path
    from winch import App, Context, Retry, Unique
    from winch.integrations import aws_lambda

    app = App(lease="1s", heartbeat="200ms", sweep="200ms", poll="100ms", concurrency=4)
    HERE = Path(__file__).parent

    @app.task(name="shop.add", queue="mail")
    def add(a: int, b: int = 1) -> int:
        return a + b

    @app.task(name="shop.nap", queue="mail")
    async def nap(seconds: float, name: str = "nap") -> str:
        with (HERE / name).open("a") as lines:
            lines.write("began\\n")
        await asyncio.sleep(seconds)
        return name

    @app.task(name="shop.note", queue="mail")
    async def note(text: str) -> None:
        await asyncio.sleep(0.05)
        with (HERE / "lines").open("a") as lines:
            lines.write(f"{text}\\n")

    @app.task(name="shop.once", queue="mail", unique=Unique("n", mode="reject"))
    def once(n: int) -> None: ...

    @app.task(name="shop.boom", queue="mail", retry=Retry(attempts=1))
    def boom() -> None:
        raise ValueError("boom")

    handler = aws_lambda.handler(app, queues=["mail"], seconds="20s", grace="300ms")
    short = aws_lambda.handler(app, queues=["mail"], seconds="1s", grace="300ms")
    store = aws_lambda.handler(app, queues=())
    adds = aws_lambda.handler(app, queues=["mail"], task=add)
    until_killed = aws_lambda.handler(app, queues=["mail"], grace="300ms")
"""
SCHEMA: dict[str, Any] = {"properties": {"seconds": {}, "name": {}, "a": {}, "b": {}}}


@pytest.fixture
def app(store_url: str) -> Iterator[App]:
    made = producer(store_url)
    yield made
    made.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/winch.db"


def producer(url: str) -> App:
    made = App(url)
    made.driver.migrate()
    for name in ("shop.add", "shop.nap", "shop.boom"):
        made.declare(name, SCHEMA, queue="mail")
    return made


def enqueue(app: App, task: str, **args: Any) -> Any:
    return app.tasks.get(task).enqueue(**args)


def states(app: App) -> list[str]:
    return sorted(str(job.state) for job in app.jobs.list(limit=200))


# -- on every store ----------------------------------------------------------------------------------


def test_an_invocation_runs_what_is_ready(app: App, store_url: str, tmp_path: Path) -> None:
    """The next invocation runs in the same process, which was frozen in between."""
    with function(store_url, tmp_path, CODE) as shop:
        jobs = [enqueue(app, "shop.add", a=n) for n in range(20)]
        bad = enqueue(app, "shop.boom")
        done = shop.invoke({"time": "2026-11-19T06:00:00Z"})
        assert done == {"completed": 20, "failed": 0, "dead": 1, "left": 0, "is_empty": True}
        assert [job.result() for job in jobs] == list(range(1, 21))
        assert bad.refresh().state == "dead"
        enqueue(app, "shop.add", a=1)
        assert shop.invoke({})["completed"] == 1
        assert shop.starts == 1
    assert not [one for one in app.workers.list() if one.ended_at is None]


def test_jobs_that_do_not_end_in_time_return_to_their_queue(
    app: App, store_url: str, tmp_path: Path
) -> None:
    with function(store_url, tmp_path, CODE, "shop.short") as shop:
        job = enqueue(app, "shop.nap", seconds=60)
        began = time.monotonic()
        done = shop.invoke({})
        assert time.monotonic() - began < 15
        assert (done["is_empty"], done["completed"]) == (False, 0)
        assert job.refresh().state == "ready"
        assert job.record.attempt == 0


def test_a_killed_function_loses_nothing(app: App, store_url: str, tmp_path: Path) -> None:
    """kill -9 while jobs of a batch run: SQS sends the batch again, its messages are the same jobs, and
    the invocation after it takes over what the killed one ran."""
    with function(store_url, tmp_path, CODE) as shop:
        sqs = Messages(shop)
        for n in range(8):
            sqs.send({"task": "shop.nap", "args": {"seconds": 0.5, "name": f"nap-{n}"}})
        batch = sqs.batch()
        request = shop.begin({"Records": batch})
        until(lambda: list(tmp_path.glob("nap-*")), "the first jobs")
        shop.kill()
        with pytest.raises(FunctionFailed):
            shop.end(request)
        assert sqs.settled(batch, None) == [one["messageId"] for one in batch]
        time.sleep(1.1)  # SQS waits for the visibility timeout too
        assert sqs.poll() == []
        assert (sqs.kept, sqs.buried, shop.starts) == ([], [], 2)
    assert states(app) == ["completed"] * 8
    began = {one.name: one.read_text().count("began") for one in tmp_path.glob("nap-*")}
    assert len(began) == 8
    assert sorted(set(began.values())) == [1, 2], "some ran when it was killed, and only those twice"


def test_an_invocation_without_time_left_is_killed(app: App, store_url: str, tmp_path: Path) -> None:
    """Lambda's own limit: what the function could not give back goes back by its lease."""
    with function(store_url, tmp_path, CODE, "shop.handler") as shop:
        job = enqueue(app, "shop.nap", seconds=3)
        request = shop.begin({}, seconds=20.0)
        until((tmp_path / "nap").exists, "the job")
        request.deadline = time.time()
        with pytest.raises(FunctionFailed, match="timed out"):
            shop.end(request)
        time.sleep(1.1)
        done = shop.invoke({})
        assert (done["completed"], done["is_empty"]) == (1, True)
        assert job.refresh().state == "completed"


def test_only_what_cannot_be_stored_is_named(app: App, store_url: str, tmp_path: Path) -> None:
    with function(store_url, tmp_path, CODE) as shop:
        sqs = Messages(shop)
        good = sqs.send(
            {"task": "shop.add", "args": {"a": 1, "b": 2}, "tags": ["x"]}, traceparent="00-x"
        )
        bad = [
            sqs.send("{"),
            sqs.send({"task": "shop.add", "args": {"a": 1, "c": 2}}),
            sqs.send({"task": "shop.add", "args": {"a": "one"}}),
            sqs.send({"task": "shop.unknown"}),
            sqs.send({"task": "shop.add", "args": {"a": 1}, "queu": "x"}),
            sqs.send({"task": "shop.add", "args": {"a": 1}, "delay": "soon"}),
            sqs.send([1]),
        ]
        also = sqs.send({"task": "shop.boom"})
        assert sqs.poll() == bad
        assert [one["messageId"] for one in sqs.kept] == bad
        sqs.poll()
        assert sqs.poll() == bad
        assert [one["messageId"] for one in sqs.buried] == bad
        assert "is no job: no task named 'shop.unknown'" in shop.log
    assert good != also
    assert states(app) == ["completed", "dead"]
    [job] = app.jobs.list(task="shop.add")
    assert (job.result(), job.record.tags) == (3, ("x",))
    assert job.record.headers["traceparent"] == "00-x"


def test_a_message_that_the_store_refuses_keeps_no_other_back(
    app: App, store_url: str, tmp_path: Path
) -> None:
    """The job has the unique key of another job. Later messages of its group wait for it."""
    with function(store_url, tmp_path, CODE, "shop.store") as shop:
        sqs = Messages(shop, arn=f"{ARN}.fifo")
        sent = {"task": "shop.once", "args": {"n": 1}}
        first, twin = sqs.send(sent, group="a"), sqs.send(sent, group="b")
        after = sqs.send({"task": "shop.once", "args": {"n": 2}}, group="b")
        other = sqs.send({"task": "shop.once", "args": {"n": 3}}, group="c")
        assert sqs.poll() == [twin, after]
        assert f"message {twin} of SQS is not stored: unique key" in shop.log
    assert first != other
    assert sorted(job.record.args for job in app.jobs.list()) == ['{"n":1}', '{"n":3}']


def test_a_message_that_comes_twice_is_one_job(app: App, store_url: str, tmp_path: Path) -> None:
    with function(store_url, tmp_path, CODE, "shop.adds") as shop:
        sqs = Messages(shop)
        for n in range(3):
            sqs.send({"a": n})
        batch = sqs.batch()
        for _ in range(3):
            assert shop.invoke({"Records": batch}) == {"batchItemFailures": []}
    assert states(app) == ["completed"] * 3


def test_a_fifo_queue_keeps_the_order_of_a_group(app: App, store_url: str, tmp_path: Path) -> None:
    """What comes after a message that failed, in its group, waits for it; other groups go on."""
    with function(store_url, tmp_path, CODE) as shop:
        sqs = Messages(shop, arn=f"{ARN}.fifo")

        def send(group: str, text: str) -> str:
            return sqs.send({"task": "shop.note", "args": {"text": text}}, group=group)

        for n in range(5):
            send("a", f"a{n}")
        broken = sqs.send("{", group="a")
        after = send("a", "a6")
        send("b", "b0")
        assert sqs.poll() == [broken, after]
    lines = (tmp_path / "lines").read_text().split()
    assert [one for one in lines if one.startswith("a")] == ["a0", "a1", "a2", "a3", "a4"]
    assert "b0" in lines


# -- on one store ------------------------------------------------------------------------------------


def test_a_store_out_of_reach_fails_every_message(tmp_path: Path) -> None:
    """An event that is no batch fails as an invocation, which Lambda shows and retries."""
    with function("postgresql://nobody@127.0.0.1:1/none", tmp_path, CODE) as shop:
        sqs = Messages(shop)
        ids = [sqs.send({"task": "shop.add", "args": {"a": n}}) for n in range(2)]
        assert sqs.poll() == ids
        with pytest.raises(FunctionFailed, match="StorageUnavailable"):
            shop.invoke({})


def test_an_event_of_another_kind_is_refused(path: str, tmp_path: Path) -> None:
    producer(path).close()
    with function(path, tmp_path, CODE, "shop.store") as shop:
        with pytest.raises(FunctionFailed, match="the event has none"):
            shop.invoke({})
        with pytest.raises(FunctionFailed, match="the event has other records"):
            shop.invoke({"Records": [{"eventSource": "aws:s3"}]})


def test_invalid_handlers_are_refused() -> None:
    with pytest.raises(ConfigError, match="queues must be a list"):
        aws_lambda.handler(App("memory://"), queues="mail")
