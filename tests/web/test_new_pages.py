"""Flows as pictures, jobs by hand, lists to take away, and the forms for queues and schedules."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import winch
from tests.web.kit import Web
from tests.web.test_pages import HTML, form_token
from winch.core.flow import FlowNote, member_id
from winch.core.job import Entry, JobRecord
from winch.core.lifecycle import JobState
from winch.web.draw import dag
from winch.web.pages.enqueue import cell

FLOW = "0198c000-0000-7000-8000-000000000001"
AT = datetime(2026, 3, 1, tzinfo=UTC)


def job(name: str, number: int, state: JobState, start: float | None, end: float | None) -> JobRecord:
    def at(seconds: float | None) -> datetime | None:
        return None if seconds is None else AT + timedelta(seconds=seconds)

    return JobRecord(
        id=member_id(FLOW, name, number), task=f"shop.{name}", version=1, args="{}", queue="q",
        priority=0, created_at=AT, run_at=AT, state=state, claimed_at=at(start), finished_at=at(end),
    )  # fmt: skip


NOTE = FlowNote(
    name="release",
    kind="flow",
    members=6,
    nodes=(
        ("a", "shop.a", 1, ()),
        ("b", "shop.b", 3, ("a",)),
        ("c", "shop.c", 1, ("a",)),
        ("d", "shop.d", 1, ("b", "c")),
    ),
)


def test_a_graph_folds_what_is_alike_and_marks_the_chain_that_counts() -> None:
    done = JobState.COMPLETED
    members = [
        job("a", 0, done, 0, 1),
        *(job("b", n, done, 1, 2 + n) for n in range(3)),
        job("c", 0, done, 1, 9),
        job("d", 0, done, 9, 10),
    ]
    nodes = {node.name: node for node in dag.nodes_of(FLOW, NOTE, members)}
    assert [nodes[name].depth for name in "abcd"] == [0, 1, 1, 2]
    assert [nodes[name].row for name in "abcd"] == [0, 0, 1, 0]
    assert [name for name in "abcd" if nodes[name].is_critical] == ["a", "c", "d"]
    drawn = str(dag.draw(list(nodes.values()), lambda path: f"/x{path}"))
    assert drawn.count('class="node') == 4
    assert drawn.count("<path") == 4
    assert "shop.b × 3" in drawn
    assert "3 ✓" in drawn
    assert drawn.count('href="/x/jobs/') == 3, "a folded node is no link to one job"
    over_time = str(dag.gantt(members, lambda path: path, AT))
    assert over_time.count("<a ") == 6


def test_over_time_an_attempt_that_failed_ends_where_it_ended() -> None:
    """A member that waits for its next attempt is not drawn as if its last one still ran."""
    done = job("a", 0, JobState.COMPLETED, 0, 1)
    waiting = job("b", 0, JobState.RETRYING, 10, None)
    failed = Entry(
        what="failed", at=AT + timedelta(seconds=12), attempt=1, claimed_at=waiting.claimed_at
    )
    waiting = msgspec.structs.replace(waiting, history=(failed,))
    now = AT + timedelta(seconds=100)
    drawn = str(dag.gantt([done, waiting], str, now))
    assert "shop.b: retrying, 2.0 s" in drawn
    [*_, thin, thick] = re.findall(r'<rect class="[^"]*" x="([0-9.]+)" y="\d+" width="([0-9.]+)"', drawn)
    assert float(thick[1]) == pytest.approx(0.02 * 660, abs=1)
    assert float(thin[0]) + float(thin[1]) == pytest.approx(850, abs=1), "it waits until now"


def test_a_graph_of_what_is_under_way_has_open_edges_and_no_chain() -> None:
    members = [job("a", 0, JobState.RUNNING, 0, None), job("d", 0, JobState.BLOCKED, None, None)]
    members += [job("z", 0, JobState.READY, None, None)]  # added later: the note does not know it
    nodes = dag.nodes_of(FLOW, NOTE, members)
    assert [node.task for node in nodes][-1] == "shop.z"
    assert not any(node.is_critical for node in nodes)
    assert str(dag.draw(nodes, str)).count("is-open") == 4
    assert dag.draw([], str) == ""
    assert dag.gantt([], str, AT) == ""
    assert nodes[1].words == "not stored yet, or pruned"


def test_a_flow_is_seen_and_acted_on(web: Web) -> None:
    made = winch.chain(web.add.bind(1, 2), web.add.partial(b=3)).enqueue()
    listed = web.ask("GET", "/flows", headers=HTML).text
    assert f"/flows/{made.id}" in listed
    assert "0 of 2" in listed
    page = web.ask("GET", f"/flows/{made.id}", headers=HTML).text
    assert page.count('class="node') == 2
    token = form_token(page)

    def act(action: str) -> int:
        data = {"form_token": token, "action": action}
        return web.ask("POST", f"/flows/{made.id}", data=data, headers=HTML).status_code

    assert act("explode") == 422
    assert act("cancel") == 303
    assert web.api("GET", f"/flows/{made.id}").json()["state"] == "cancelled"
    assert act("retry") == 303
    signal = {"form_token": token, "name": "approval:7", "payload": '{"ok": true}'}
    assert web.ask("POST", "/flows", data=signal, headers=HTML).status_code == 303
    actions = [line["action"] for line in web.api("GET", "/audit").json()["lines"]]
    assert actions == ["signal", "flow", "flow"]


def test_a_job_is_enqueued_by_hand(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    page = web.ask("GET", "/jobs/new?task=shop.add", headers=HTML).text
    assert re.search(r"<textarea[^>]*>{\s+&#34;a&#34;: 0,\s+&#34;b&#34;: 1\s+}</textarea>", page), page
    token = form_token(page)

    def send(**given: str) -> Any:
        return web.ask("POST", "/jobs/new", data={"form_token": token, **given}, headers=HTML)

    made = send(task="shop.add", args='{"a": 7}', priority="5", queue="low", tags="x, y")
    assert made.status_code == 303
    found = web.app.jobs.get(re.findall(r"/jobs/([0-9a-f-]{36})", made.headers["location"])[0])
    assert (found.record.queue, found.record.priority, found.record.tags) == ("low", 5, ("x", "y"))
    assert json.loads(found.record.args) == {"a": 7, "b": 1} or json.loads(found.record.args) == {"a": 7}
    for wrong in ({"args": '{"a": "x"}'}, {"args": "[1]"}, {"args": "{"}, {"delay": "soon"}):
        answer = send(task="shop.add", **wrong)
        assert answer.status_code in (400, 422), wrong
        assert 'role="alert"' in answer.text
        assert "Enqueue</button>" in answer.text, "the form is there to be mended"
    assert send(task="no.such", args="{}").status_code == 422
    assert [line["action"] for line in web.api("GET", "/audit").json()["lines"]] == ["enqueue"]


def test_a_list_is_taken_away_and_no_cell_is_a_formula(web: Web) -> None:
    for text in ("=cmd|' /C calc'!A0", "+1", "@x", "plain", "-2"):
        web.mail.using(tags=[text]).enqueue(text, password="CANARY")
    web.add.enqueue(1)
    answer = web.ask("GET", "/jobs.csv?queue=mail", headers=HTML)
    assert answer.headers["content-disposition"] == 'attachment; filename="jobs.csv"'
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == 5
    assert not [
        value for row in rows for value in row.values() if value.startswith(("=", "+", "-", "@"))
    ]
    assert "CANARY" not in answer.text
    lines = web.ask("GET", "/jobs.ndjson?queue=mail", headers=HTML).text.splitlines()
    assert len([msgspec.json.decode(line) for line in lines]) == 5
    assert "CANARY" not in "".join(lines)


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@a", "\ta", "\ra"])
def test_a_formula_becomes_a_text(text: str) -> None:
    assert cell(text) == f"'{text}"
    assert cell("a=1") == "a=1"


def test_a_queue_and_a_schedule_are_set_by_forms(web: Web) -> None:
    web.add.enqueue(1)
    token = form_token(web.ask("GET", "/queues/default", headers=HTML).text)

    def send(path: str, **given: str) -> int:
        data = {"form_token": token, **given}
        return web.ask("POST", path, data=data, headers=HTML).status_code

    assert send("/queues/default/settings", max_depth="9", backoff="30s", on_full="shed") == 303
    said = web.api("GET", "/queues/default/settings").json()["settings"]
    assert (said["max_depth"], said["backoff"], said["on_full"]) == (9, "30s", "shed")
    assert 'value="9"' in web.ask("GET", "/queues/default", headers=HTML).text
    words = "exponential 2s factor=2 max=5m jitter=full"
    assert send("/queues/default/settings", backoff=words) == 303
    assert web.api("GET", "/queues/default/settings").json()["settings"]["backoff"] == words
    assert words in web.ask("GET", "/queues/default", headers=HTML).text
    assert send("/queues/default/settings", max_depth="few") == 422
    assert send("/schedules", name="x/y", task="shop.add", cron="0 2 * * *", args='{"a": 1}') == 303
    assert send("/schedules", name="z", task="no.such", every="1h") == 422
    assert send("/schedules/x%2Fy", action="edit", every="5m", cron="", overlap="skip") == 303
    one = web.app.schedules.list()[0]
    assert (one.timing.every, str(one.overlap)) == (timedelta(minutes=5), "skip")
    assert send("/schedules/x%2Fy", action="remove") == 400
    assert send("/schedules/x%2Fy", action="remove", sure="yes") == 303
    assert web.app.schedules.list() == []
