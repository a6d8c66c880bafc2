"""Flows, signals, the settings of queues and schedules over HTTP; and that the command line's acts are
in the audit as well."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from tests.web.kit import Web
from winch import App, Retry, chain, chord
from winch.cli import cli
from winch.engine.client.audit import Audit, actor, noted_outside


def test_a_flow_is_looked_at_cancelled_and_retried(web: Web) -> None:
    made = chain(web.add.bind(1, 2), web.add.partial(b=3)).enqueue()
    other = chord([web.add.bind(n, 1) for n in range(3)], web.add.partial(b=1)).enqueue()
    listed = web.api("GET", "/flows").json()
    assert [flow["id"] for flow in listed["flows"]] == [other.id, made.id]
    first = web.api("GET", "/flows?limit=1").json()
    assert [flow["id"] for flow in first["flows"]] == [other.id]
    rest = web.api("GET", f"/flows?cursor={first['next']}").json()
    assert [flow["id"] for flow in rest["flows"]] == [made.id]
    shown = web.api("GET", f"/flows/{made.id}").json()
    assert shown["state"] == "running"
    assert shown["counts"] == {"ready": 1, "blocked": 1}
    assert [node["task"] for node in shown["nodes"]] == ["shop.add", "shop.add"]
    assert shown["nodes"][1]["after"] == [shown["nodes"][0]["name"]]
    assert len(shown["members"]) == 2
    drawn = web.api("GET", f"/flows/{made.id}/graph").text
    assert drawn.startswith("flowchart TD")
    assert "-->" in drawn
    assert web.api("POST", f"/flows/{made.id}/cancel", {"reason": "no"}).json() == {"jobs": 2}
    assert web.api("GET", f"/flows/{made.id}").json()["state"] == "cancelled"
    assert web.api("POST", f"/flows/{made.id}/retry", {}).json()["jobs"] >= 1
    lines = web.api("GET", "/audit").json()["lines"]
    assert [(line["action"], line["target"]) for line in lines] == [
        ("retry flow", made.id),
        ("cancel flow", made.id),
    ]
    missing = web.api("GET", "/flows/0198c000-0000-7000-8000-00000000dead")
    assert (missing.status_code, missing.json()["code"]) == (404, "not-found")


def test_a_signal_is_kept_once(web: Web) -> None:
    sent = web.api("POST", "/signals/approval:7", {"payload": {"ok": True}, "id": "one"})
    assert (sent.status_code, sent.json()) == (202, {"name": "approval:7", "is_new": True})
    again = web.api("POST", "/signals/approval:7", {"payload": {"ok": True}, "id": "one"})
    assert again.json()["is_new"] is False
    assert web.api("GET", "/audit").json()["lines"][0]["action"] == "signal"
    assert web.api("POST", "/signals/%20", {}).status_code == 422


def test_a_scoped_user_sees_no_flow_and_sends_no_signal(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite", auth="tokens")
    for scope in ({"tenant": "acme"}, {"queues": ("mail",)}):
        token = web.token("operate", **scope)
        assert web.api("GET", "/flows", token=token).status_code == 403
        assert web.api("POST", "/signals/x", {}, token=token).status_code == 403


def test_a_queue_is_configured(web: Web) -> None:
    set_ = web.api("PATCH", "/queues/mail", {"max_depth": 1, "retries": 4, "backoff": "30s"})
    assert set_.status_code == 200
    settings = web.api("GET", "/queues/mail/settings").json()["settings"]
    assert (settings["max_depth"], settings["retries"], settings["backoff"]) == (1, 4, "30s")
    web.mail.enqueue("ada")
    web.app.close()  # forget what this process has read about the queue
    back = web.api("PATCH", "/queues/mail", {"retries": None}).json()["settings"]
    assert "retries" not in back
    assert back["max_depth"] == 1
    for wrong in ({}, {"max_depth": 0}, {"max_dept": 1}, {"on_full": "shout"}, {"max_depth": "x"}):
        assert web.api("PATCH", "/queues/mail", wrong).status_code == 422
    [line, _] = web.api("GET", "/audit").json()["lines"]
    assert (line["action"], line["detail"]) == ("configure queue", {"settings": {"retries": None}})


def test_a_schedule_is_added_and_changed(web: Web) -> None:
    body = {"name": "nightly/7", "task": "shop.add", "cron": "0 2 * * *", "args": {"a": 7}}
    made = web.api("POST", "/schedules", body)
    assert made.status_code == 201
    assert web.ask("GET", made.headers["location"]).status_code == 200
    assert web.api("POST", "/schedules", {**body, "cron": "0 3 * * *"}).status_code == 422
    changed = web.api("PATCH", "/schedules/nightly/7", {"every": "5m", "overlap": "skip"}).json()
    assert (changed["every_seconds"], changed["overlap"], changed["cron"]) == (300.0, "skip", None)
    for wrong, code in (
        ({"cron": "61 * * * *"}, 422),
        ({"overlap": "shout"}, 422),
        ({}, 422),
        ({"args": {"b": 1}}, 422),
        ({"nothing": 1}, 422),
    ):
        assert web.api("PATCH", "/schedules/nightly/7", wrong).status_code == code, wrong
    assert web.api("POST", "/schedules", {**body, "task": "no.such"}).status_code == 422
    assert web.api("PATCH", "/schedules/none", {"every": "5m"}).status_code == 404
    actions = [line["action"] for line in web.api("GET", "/audit").json()["lines"]]
    assert actions == ["edit schedule", "add schedule"]


def test_the_command_line_leaves_lines_in_the_audit(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'winch.db'}"
    app = App(url)
    app.migrate()
    add = app.task(name="add", retry=Retry.fixed("1s", attempts=1))(lambda a=1: 1 // a)
    first, dead = add.enqueue(a=1), add.enqueue(a=0)
    flow = chain(add.bind(a=1), add.bind(a=1)).enqueue()
    with noted_outside():
        app.queues.pause("default")
        first.cancel()
        app.queues.resume("default")
    app.run_worker(burst=True)
    assert dead.refresh().state == "dead"

    def run(*words: str) -> str:
        done = CliRunner().invoke(cli, ["--url", url, *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    run("dead", "replay", dead.id)
    run("jobs", "cancel", dead.id)
    run("jobs", "retry", first.id)
    run("jobs", "cancel", first.id)
    run("jobs", "delete", first.id, "--yes")
    run("dead", "replay", "--all")
    run("queues", "pause", "mail", "--reason", "why", "--create")
    run("queues", "resume", "mail")
    run("queues", "set", "mail", "max_depth=5")
    run("queues", "set", "mail")  # shows
    run("flows", "cancel", flow.id)
    run("flows", "retry", flow.id)
    run("signal", "hello")
    run("limits", "set", "tenant:acme", "3", "--create")
    run("limits", "reset", "tenant:acme")
    made = json.loads(run("token", "create", "ops", "--role", "read", "--json"))
    run("token", "revoke", made["id"])
    with noted_outside():
        app.schedules.add("s", task="add", every="1h")
    for word in ("pause", "resume", "trigger", "skip", "remove"):
        run("schedules", word, "s")
    run("jobs", "list")
    lines = app.client.run(Audit(app.ready()).read(limit=100))
    assert [line.action for line in reversed(lines)] == [
        "replay dead", "cancel", "retry", "cancel", "delete", "replay dead", "pause queue",
        "resume queue", "configure queue", "cancel flow", "retry flow", "signal", "set limit",
        "reset limit", "create token", "revoke token", "pause schedule", "resume schedule",
        "trigger schedule", "skip window", "remove schedule",
    ]  # fmt: skip
    assert {line.via for line in lines} == {"cli"}
    assert {line.who for line in lines} == {actor()}
    assert lines[-7].detail == {"reason": "why"}
    app.close()
