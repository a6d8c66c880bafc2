"""Dead letters: groups, replay with changes and at a rate, purge, and what the pruner keeps."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from winch import (
    App,
    ConfigError,
    DuplicateJob,
    InvalidPayload,
    InvalidTransition,
    JobState,
    Keyring,
    PayloadTooLarge,
    Retention,
    Retry,
)
from winch.areas.replay import PAGE
from winch.engine.maintenance import pruner
from winch.engine.maintenance.pruner import Pruner


def new_app() -> App:
    app = App("memory://")

    @app.task(name="mail", retry=Retry.never())
    def mail(to: str, times: int = 1) -> str:
        if to.startswith("bad"):
            raise ValueError(f"no mailbox {to!r}")
        if to == "odd":
            raise KeyError(to)
        return f"sent to {to}"

    return app


def die(app: App, *names: str) -> list[str]:
    mail = app.tasks.get("mail")
    jobs = app.enqueue_many(mail.bind(name) for name in names)
    app.run_worker(burst=True)
    return [job.id for job in jobs]


def test_groups_show_the_error_that_killed_their_jobs() -> None:
    app = new_app()
    ids = die(app, "bad1", "odd", "bad2")
    big, small = app.dead.groups()
    assert (big.count, big.error_type, big.message) == (2, "ValueError", "no mailbox 'bad2'")
    assert (small.count, small.error_type, small.sample_id) == (1, "KeyError", ids[1])
    assert [job.id for job in app.dead.list(group=big.fingerprint)] == [ids[2], ids[0]]
    assert app.dead.groups(task="other") == []
    with pytest.raises(ConfigError, match="limit must be from 1 to 1000"):
        app.dead.groups(limit=0)


def test_a_group_is_replayed_with_other_arguments() -> None:
    app = new_app()
    ids = die(app, "bad1", "odd", "bad2")
    group = app.dead.groups()[0].fingerprint
    dry = app.dead.replay(group=group, args={"to": "ada"}, dry_run=True)
    assert (dry.matched, dry.replayed, dry.is_dry_run) == (2, 0, True)
    done = app.dead.replay(group=group, args={"to": "ada"}, attempts=3, to_queue="default")
    assert (done.matched, done.replayed, done.refused) == (2, 2, 0)
    app.run_worker(burst=True)
    job = app.jobs.get(ids[0])
    assert job.result() == "sent to ada"
    assert job.record.history[-1].note == "with new args, queue default, 3 attempts"
    assert job.record.max_attempts == 3
    assert app.jobs.get(ids[1]).state is JobState.DEAD


def test_attempts_given_by_an_operator_beat_the_policy() -> None:
    app = App("memory://")
    tries: list[int] = []

    @app.task(name="t", retry=Retry.fixed("0s", attempts=1))
    def t() -> None:
        tries.append(1)
        raise ValueError

    job = t.enqueue()
    app.run_worker(burst=True)
    app.dead.replay([job.id], attempts=3)
    app.run_worker(burst=True)
    assert (len(tries), job.refresh().state) == (4, JobState.DEAD)


@pytest.mark.parametrize(
    "how, error, message",
    [
        ({"task": "mail", "args": {"too": "x"}}, InvalidPayload, "no argument 'too'"),
        ({"task": "mail", "args": {"to": 7}}, InvalidPayload, "expected str, got int"),
        ({"task": "mail", "args": 7}, InvalidPayload, "a mapping"),
        ({"queue": "default", "args": {"to": "x"}}, ConfigError, "belong to one task"),
        ({"attempts": 0}, ConfigError, "from 1 to"),
        ({"rate": "fast"}, ConfigError, "rate must look like"),
        ({"to_queue": "a,b"}, ConfigError, "queue must not contain"),
        ({"ids": ["01890000-0000-7000-8000-00000000000"]}, ConfigError, "job id"),
        ({"ids": [], "task": "mail"}, ConfigError, "not both"),
    ],
)
def test_a_wrong_replay_is_refused_before_it_acts(
    how: dict[str, Any], error: type[Exception], message: str
) -> None:
    app = new_app()
    [dead] = die(app, "bad")
    with pytest.raises(error, match=message):
        app.dead.replay(**how)
    assert app.jobs.get(dead).state is JobState.DEAD


def test_new_arguments_of_an_unknown_task_must_be_forced() -> None:
    app = new_app()
    [dead] = die(app, "bad")
    app.tasks._tasks.clear()
    with pytest.raises(ConfigError, match="not registered here"):
        app.dead.replay([dead], args={"to": "ada"})
    assert app.dead.replay([dead], args={"to": "ada"}, force=True).replayed == 1


def test_named_jobs_that_are_not_dead_are_refused() -> None:
    app = new_app()
    [dead] = die(app, "bad")
    ready = app.tasks.get("mail").enqueue("ada")
    missing = "00000000-0000-7000-8000-000000000000"
    done = app.dead.replay([dead, ready.id, missing])
    assert (done.matched, done.replayed, done.refused) == (1, 1, 2)
    assert [type(refusal.error).__name__ for refusal in done.refusals] == [
        "InvalidTransition",
        "JobNotFound",
    ]
    assert isinstance(done.refusals[0].error, InvalidTransition)


def test_a_replay_goes_page_by_page_and_takes_no_job_twice() -> None:
    app = new_app()
    die(app, *(f"bad{n}" for n in range(PAGE + 7)))
    driver = app.ready()
    pages: list[int] = []
    real = driver.list_jobs

    def counted(which: Any) -> Any:
        pages.append(which.limit)
        return real(which)

    driver.list_jobs = counted  # type: ignore[method-assign]
    done = app.dead.replay()
    assert (done.replayed, pages) == (PAGE + 7, [PAGE, PAGE])


def test_a_rate_paces_a_replay() -> None:
    app = new_app()
    die(app, *(f"bad{n}" for n in range(30)))
    began = time.monotonic()
    assert app.dead.replay(rate="100/s").replayed == 30
    assert 0.18 <= time.monotonic() - began < 2


def test_purge_needs_a_rule_and_returns_the_count() -> None:
    app = new_app()
    ids = die(app, *(f"bad{n}" for n in range(5)))
    with pytest.raises(ConfigError, match="needs a rule"):
        app.dead.purge()
    assert app.dead.purge(older_than="1h") == 0
    assert app.dead.purge(keep=3, dry_run=True) == 2
    assert app.dead.purge(keep=3) == 2
    assert app.dead.purge(max_bytes=0, task="other") == 0
    assert app.dead.purge(older_than="0s") == 3
    assert app.dead.list() == []
    assert len(ids) == 5


def test_a_tasks_retention_travels_with_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("memory://")

    @app.task(name="few", retry=Retry.never(), retention=Retention("30d", count=2))
    def few() -> None:
        raise ValueError

    @app.task(name="many", retry=Retry.never(), retention="30d")
    def many() -> None:
        raise ValueError

    jobs = [task.enqueue() for task in (few, many) for _ in range(5)]
    assert [job.record.options for job in jobs[::5]] == ['{"dead_count":2}', None]
    assert {job.record.keep.days for job in jobs if job.record.keep is not None} == {30}
    app.run_worker(burst=True)
    monkeypatch.setattr(pruner, "DEAD_COUNT", 4)
    once = Pruner(app.ready())
    assert asyncio.run(once.run_once()) == pruner.EVERY
    assert {group.task: group.count for group in app.dead.groups()} == {"few": 2, "many": 4}


def test_a_replay_of_a_job_whose_key_is_held_is_refused() -> None:
    app = App("memory://")

    @app.task(name="t", retry=Retry.never(), unique="only")
    def t(n: int) -> None:
        if n == 0:
            raise ValueError

    dead = t.enqueue(0)
    app.run_worker(burst=True)
    holder = t.enqueue(1)
    done = app.dead.replay()
    assert (done.matched, done.replayed, done.refused) == (1, 0, 1)
    with pytest.raises(DuplicateJob, match="its unique key is held") as refused:
        dead.retry()
    assert refused.value.existing == holder.id


def test_a_result_over_the_limit_is_kept_in_part() -> None:
    app = App("memory://")

    @app.task(name="big")
    def big() -> list[str]:
        return ["ü" * 1000] * 1000

    job = big.enqueue()
    app.run_worker(burst=True)
    with pytest.raises(PayloadTooLarge, match=r"its result was 2,003,001 bytes and the limit is"):
        job.result()
    assert job.refresh().state is JobState.COMPLETED
    assert (job.record.result or "").startswith('{"winch":"truncated","bytes":2003001,"head":"[')


def test_options_of_one_enqueue_reach_the_worker() -> None:
    app = App("memory://")

    @app.task(name="t", retry=Retry.never())
    async def t(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    short = t.using(timeout="50ms").enqueue(5)
    none = t.using(timeout=None, retry=Retry.fixed("1s")).enqueue(0)
    app.run_worker(burst=True)
    assert none.result() == "done"
    assert (short.refresh().state, short.record.reason) == (JobState.DEAD, "failed 1 time")


def test_new_arguments_of_a_replay_are_encrypted_like_the_old_ones() -> None:
    app = App("memory://", keys=Keyring({"k1": bytes(32)}, current="k1"))

    @app.task(name="t", retry=Retry.never())
    def task(n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        return n

    job = task.enqueue(-1)
    app.run_worker(burst=True)
    assert job.refresh().state is JobState.DEAD
    app.dead.replay(ids=[job.id], args={"n": 5})
    assert '"n"' not in job.refresh().record.args
    app.run_worker(burst=True)
    assert job.result() == 5
