"""Every action leaves one line in the audit, whichever way it is asked for."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from winch import App, ConfigError, InvalidTransition, JobNotFound, Retry, StorageUnavailable, group
from winch.engine.client.audit import acting, actor, noted_outside
from winch.storage.params import NewSession
from winch.testing import virtual
from winch.types import AuditLine

ONCE = Retry.fixed("1s", attempts=1)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path}/winch.db")
    app.migrate()

    @app.task(name="work")
    def work(n: int = 0) -> None: ...

    yield app
    app.close()


def lines(app: App) -> list[AuditLine]:
    return app.audit.list(limit=1000)[::-1]


def waiting(app: App) -> Any:
    return app.tasks.get("work").using(delay="1h").enqueue()


def cancelled(app: App) -> str:
    job = waiting(app)
    with noted_outside():
        job.cancel()
    return str(job.id)


def a_flow(app: App) -> str:
    return group([app.tasks.get("work").using(delay="1h").bind()]).enqueue().id


def a_key(app: App) -> str:
    app.tasks.get("work").using(delay="1h", unique="order:7").enqueue()
    return "order:7"


def a_held_scope(app: App) -> str:
    with noted_outside():
        app.limits.trip("bank", "1h")
    return "bank"


DAY = datetime(2026, 3, 1, tzinfo=UTC)


def an_endpoint(app: App) -> str:
    app.webhooks.setup()
    with noted_outside():
        return app.webhooks.subscribe("https://example.com", ["e"]).endpoint.id


def a_schedule(app: App) -> str:
    with noted_outside():
        app.schedules.add("s", "work", every="1h")
    return "s"


def a_worker(app: App) -> str:
    driver = app.ready()
    session = NewSession(
        id="0198c000-0000-4000-8000-00000000dead", worker="box-1", host="box", pid=1, release="1",
        queues=("default",), tasks=(), slots=1, lease=timedelta(minutes=5), supervisor="s",
    )  # fmt: skip
    driver.run(driver.start_session(session))
    return "box-1"


# The call, and the fields of its line: action, target ("" is what the first function gives), detail.
ACTIONS: dict[str, tuple[Callable[[App], Any], Callable[[App, Any], Any], str, dict[str, Any]]] = {
    "jobs.cancel": (
        lambda app: waiting(app).id,
        lambda app, job: app.jobs.cancel(job, reason="r"),
        "cancel",
        {"was": "scheduled", "reason": "r"},
    ),
    "jobs.retry": (cancelled, lambda app, job: app.jobs.retry(job), "retry", {"was": "cancelled"}),
    "jobs.delete": (cancelled, lambda app, job: app.jobs.delete(job), "delete", {"was": "cancelled"}),
    "job.cancel": (
        lambda app: waiting(app).id,
        lambda app, job: app.jobs.get(job).cancel(),
        "cancel",
        {"was": "scheduled"},
    ),
    "job.retry": (
        lambda app: waiting(app).id,
        lambda app, job: app.jobs.get(job).retry(),
        "retry",
        {"was": "scheduled"},
    ),
    "job.delete": (
        lambda app: waiting(app).id,
        lambda app, job: app.jobs.get(job).delete(),
        "delete",
        {"was": "scheduled"},
    ),
    "dead.replay": (
        lambda app: "jobs",
        lambda app, _: app.dead.replay(task="work", args={"n": 7}),
        "replay dead",
        {"task": "work", "args": ["n"], "replayed": 0},
    ),
    "dead.mark": (
        lambda app: "0123456789abcdef",
        lambda app, group: app.dead.mark(group, state="ignored", assignee="ada"),
        "mark dead group",
        {"state": "ignored", "assignee": "ada"},
    ),
    "dead.discard": (
        lambda app: "jobs",
        lambda app, _: app.dead.discard(task="work"),
        "discard dead",
        {"task": "work", "discarded": 0},
    ),
    "jobs.release_key": (
        a_key,
        lambda app, key: app.jobs.release_key(key),
        "release key",
        {"job": ...},
    ),
    "queues.drain": (
        lambda app: "mail",
        lambda app, queue: app.queues.drain(queue, reason="r"),
        "drain queue",
        {"reason": "r"},
    ),
    "queues.move": (
        lambda app: "default",
        lambda app, queue: app.queues.move(queue, "mail"),
        "move jobs",
        {"to": "mail", "moved": 0},
    ),
    "limits.trip": (
        lambda app: "bank",
        lambda app, name: app.limits.trip(name, "10m", reason="r"),
        "trip breaker",
        {"hold": "10m", "reason": "r"},
    ),
    "limits.untrip": (
        a_held_scope,
        lambda app, name: app.limits.untrip(name),
        "reset breaker",
        {},
    ),
    "flows.rerun": (
        a_flow,
        lambda app, flow: app.flows.rerun(flow, app.flows.get(flow).note.nodes[0][0]),
        "rerun flow",
        {"node": ..., "jobs": 0},
    ),
    "dead.purge": (
        lambda app: "jobs",
        lambda app, _: app.dead.purge(older_than="30d", keep=3),
        "purge dead",
        {"older_than": "30d", "keep": 3, "purged": 0},
    ),
    "queues.pause": (
        lambda app: "mail",
        lambda app, queue: app.queues.pause(queue, reason="r"),
        "pause queue",
        {"reason": "r"},
    ),
    "queues.resume": (
        lambda app: "mail",
        lambda app, queue: app.queues.resume(queue),
        "resume queue",
        {},
    ),
    "queues.configure": (
        lambda app: "mail",
        lambda app, queue: app.queues.configure(queue, max_depth=5, max_age=timedelta(seconds=90)),
        "configure queue",
        {"settings": {"max_depth": 5, "max_age": "0:01:30"}},
    ),
    "queues.purge": (
        lambda app: (waiting(app), "default")[1],
        lambda app, queue: app.queues.purge(queue),
        "purge queue",
        {"deleted": 1, "cancelled": 0},
    ),
    "schedules.add": (
        lambda app: "s",
        lambda app, name: app.schedules.add(name, "work", every="1h"),
        "add schedule",
        {"task": "work", "words": "every 1h"},
    ),
    "schedules.edit": (
        a_schedule,
        lambda app, name: app.schedules.edit(name, every="2h", args={"n": 1}),
        "edit schedule",
        {"changed": ["every", "args"], "words": "every 2h"},
    ),
    "schedules.pause": (
        a_schedule,
        lambda app, name: app.schedules.pause(name, reason="r"),
        "pause schedule",
        {"reason": "r"},
    ),
    "schedules.resume": (
        a_schedule,
        lambda app, name: app.schedules.resume(name),
        "resume schedule",
        {},
    ),
    "schedules.trigger": (
        a_schedule,
        lambda app, name: app.schedules.trigger(name),
        "trigger schedule",
        {"job": ...},
    ),
    "schedules.skip": (
        a_schedule,
        lambda app, name: app.schedules.skip(name),
        "skip window",
        {"window": ...},
    ),
    "schedules.backfill": (
        a_schedule,
        lambda app, name: app.schedules.backfill(name, DAY, DAY + timedelta(hours=2)),
        "backfill schedule",
        {"start": ..., "end": ..., "enqueued": 2},
    ),
    "webhooks.subscribe": (
        lambda app: "",  # its id is drawn
        lambda app, _: app.webhooks.subscribe("https://example.com/?token=s3cret", ["e"]),
        "subscribe webhook",
        {"url": ..., "events": ["e"]},
    ),
    "webhooks.edit": (
        an_endpoint,
        lambda app, name: app.webhooks.edit(name, events=["f"]),
        "edit webhook",
        {"events": ["f"]},
    ),
    "webhooks.disable": (
        an_endpoint,
        lambda app, name: app.webhooks.disable(name, reason="r"),
        "disable webhook",
        {"reason": "r"},
    ),
    "webhooks.enable": (
        an_endpoint,
        lambda app, name: app.webhooks.enable(name),
        "enable webhook",
        {},
    ),
    "webhooks.rotate": (
        an_endpoint,
        lambda app, name: app.webhooks.rotate(name),
        "rotate webhook secret",
        {"overlap": ...},
    ),
    "webhooks.replay": (
        an_endpoint,
        lambda app, name: app.webhooks.replay(name, start=DAY),
        "replay webhooks",
        {"start": ..., "enqueued": 0},
    ),
    "webhooks.remove": (
        an_endpoint,
        lambda app, name: app.webhooks.remove(name),
        "remove webhook",
        {},
    ),
    "schedules.remove": (
        a_schedule,
        lambda app, name: app.schedules.remove(name),
        "remove schedule",
        {},
    ),
    "workers.quiet": (
        a_worker,
        lambda app, name: app.workers.quiet(name, wait="0s"),
        "quiet worker",
        {},
    ),
    "workers.resume": (
        a_worker,
        lambda app, name: app.workers.resume(name, wait="0s"),
        "resume worker",
        {},
    ),
    "workers.stop": (
        a_worker,
        lambda app, name: app.workers.stop(name, grace="2s", wait="0s"),
        "stop worker",
        {"grace": 2.0},
    ),
    "workers.drain": (
        a_worker,
        lambda app, name: app.workers.drain(name, wait="0s"),
        "drain worker",
        {},
    ),
    "workers.stacks": (
        a_worker,
        lambda app, name: app.workers.stacks(name, wait="0s"),
        "worker stacks",
        {},
    ),
    "workers.configure": (
        a_worker,
        lambda app, name: app.workers.configure(name, concurrency=3, wait="0s"),
        "configure worker",
        {"concurrency": 3},
    ),
    "limits.set": (
        lambda app: "tenant:acme",
        lambda app, name: app.limits.set(name, 3),
        "set limit",
        {"value": 3},
    ),
    "limits.reset": (
        lambda app: "tenant:acme",
        lambda app, name: app.limits.reset(name),
        "reset limit",
        {},
    ),
    "flows.cancel": (
        a_flow,
        lambda app, flow: app.flows.cancel(flow, reason="r"),
        "cancel flow",
        {"jobs": 1, "reason": "r"},
    ),
    "flows.retry": (a_flow, lambda app, flow: app.flows.retry(flow), "retry flow", {"jobs": 0}),
    "outbox.replay": (
        lambda app: "jobs",
        lambda app, _: app.outbox.replay("orders"),
        "replay dead",
        {"task": "outbox:orders", "replayed": 0},
    ),
    "outbox.purge": (
        lambda app: "jobs",
        lambda app, _: app.outbox.purge("orders", older_than="1d"),
        "purge dead",
        {"older_than": "1d", "task": "outbox:orders", "purged": 0},
    ),
    "signal": (
        lambda app: "hello",
        lambda app, name: app.signal(name, {"password": "s3cret"}, id="1"),
        "signal",
        {"id": "1", "is_new": True},
    ),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_of_the_library_leaves_one_line(app: App, name: str) -> None:
    prepare, act, action, detail = ACTIONS[name]
    target = prepare(app)
    assert lines(app) == []
    act(app, target)
    target = target or app.webhooks.list()[0].id
    [line] = lines(app)
    assert (line.action, line.target, line.via, line.who) == (action, target, "library", actor())
    assert line.origin == f"{socket.gethostname()}:{os.getpid()}"
    assert {key: value for key, value in line.detail.items() if detail.get(key) is not ...} == {
        key: value for key, value in detail.items() if value is not ...
    }
    assert datetime.now(UTC) - line.at < timedelta(minutes=1)
    assert "s3cret" not in str(line)


def test_the_table_has_every_method_that_changes_something() -> None:
    app = App("memory://")
    looks = {"list", "get", "groups", "settings", "next", "history", "members", "sink", "add", "begin",
             "calendar", "setup", "publish", "deliveries", "marks", "trend", "unique_keys", "tenants",
             "breakers"}  # fmt: skip
    areas = ("jobs", "dead", "queues", "schedules", "workers", "limits", "flows", "outbox", "webhooks")
    for area in areas:
        for name in vars(type(getattr(app, area))):
            is_twin = name.startswith("a") and hasattr(getattr(app, area), name[1:])
            if name.startswith("_") or is_twin or name == "topics":
                continue
            assert name in looks or f"{area}.{name}" in ACTIONS, f"app.{area}.{name}"


def test_refused_actions_and_dry_runs_leave_no_audit_line(app: App) -> None:
    job = cancelled(app)
    with pytest.raises(InvalidTransition):
        app.jobs.cancel(job)
    with pytest.raises(JobNotFound):
        app.jobs.delete("01980000-0000-7000-8000-000000000000")
    app.dead.replay(task="work", dry_run=True)
    app.dead.purge(older_than="1d", dry_run=True)
    assert app.dead.replay([job]).refused == 1
    app.queues.purge("default", dry_run=True)
    app.queues.configure("mail")
    assert lines(app) == []


def test_producing_and_working_leave_no_line() -> None:
    app = App("memory://")

    @app.task(name="work")
    def work(n: int) -> None: ...

    with virtual(app) as world:
        work.enqueue(1)
        app.enqueue_many([work.bind(2), work.bind(3)])
        group([work.bind(4)]).enqueue()
        world.run_all()
        assert app.audit.list() == []


def test_an_actor_can_be_named_and_is_in_the_history_too(app: App) -> None:
    job = waiting(app)
    with app.audit.actor("ada"):
        app.jobs.cancel(job.id)
    app.jobs.retry(job.id)
    assert [line.who for line in lines(app)] == ["ada", actor()]
    assert "ada" in str(job.refresh().record.history)


def test_lines_are_found_by_actor_action_and_time(app: App) -> None:
    for who in ("ada", "bob"):
        with acting(who):
            app.queues.pause(f"{who}-1")
            app.queues.resume(f"{who}-1")
    assert [line.target for line in app.audit.list(actor="ada")] == ["ada-1", "ada-1"]
    assert [line.who for line in app.audit.list(action="pause queue")] == ["bob", "ada"]
    assert len(app.audit.list(actor="ada", action="pause queue")) == 1
    assert len(app.audit.list(since="1h")) == 4
    assert app.audit.list(since=datetime.now(UTC) + timedelta(hours=1)) == []
    newest = app.audit.list(limit=1)
    assert len(app.audit.list(before=newest[0].id)) == 3
    assert asyncio.run(app.audit.alist(actor="bob", limit=1)) == newest
    [first] = app.audit.list(actor="ada", action="pause queue")
    assert len(app.audit.list(since=first.at)) == 4
    with pytest.raises(ConfigError, match="time zone"):
        app.audit.list(since=datetime(2026, 1, 1))  # noqa: DTZ001


def test_an_action_is_done_also_where_its_line_cannot_be_written(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = waiting(app)
    driver = app.ready()

    def kv_put(*_: Any, **__: Any) -> Any:
        raise StorageUnavailable("gone")

    monkeypatch.setattr(driver, "kv_put", kv_put)
    with caplog.at_level(logging.WARNING):
        assert app.jobs.cancel(job.id) == "scheduled"
    assert "the audit has no line about it: gone" in caplog.text
    assert job.refresh().state == "cancelled"
