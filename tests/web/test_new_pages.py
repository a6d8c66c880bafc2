"""Flows as pictures, jobs from a form, lists to download, and the forms for queues and schedules."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import winch
from tests.web.kit import Web
from tests.web.prepared import prepare
from tests.web.test_pages import HTML, form_token
from winch.core.flow import FlowNote, member_id
from winch.core.job import Entry, JobRecord
from winch.core.lifecycle import JobState
from winch.storage.params import QueueInfo
from winch.web.draw import graph, tracks
from winch.web.pages import figures
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
    nodes = {node.name: node for node in graph.nodes_of(FLOW, NOTE, members)}
    assert [nodes[name].depth for name in "abcd"] == [0, 1, 1, 2]
    assert [nodes[name].row for name in "abcd"] == [0, 0, 1, 0]
    assert [name for name in "abcd" if nodes[name].is_critical] == ["a", "c", "d"]
    assert graph.critical_of(list(nodes.values())) == timedelta(seconds=10)
    drawn = str(graph.draw(list(nodes.values()), lambda name: f"/x/{name}"))
    assert drawn.count('class="node') == 4
    assert drawn.count('class="edge') == 4
    assert drawn.count("is-critical") == 3 + 2 + 1, "nodes, the edges between them, their tip"
    assert "b × 3" in drawn
    assert "3 completed" in drawn
    assert sorted(re.findall(r'href="/x/(\w)"', drawn)) == ["a", "b", "c", "d"]
    single = graph.unfolded(list(nodes.values()))
    assert len(single) == 6
    assert len(next(node for node in single if node.name == "d").before) == 4
    over_time = tracks.of_nodes(list(nodes.values()), AT, lambda name: name)
    assert over_time is not None
    assert [(row.label, row.took) for row in over_time.rows][:2] == [("a", "1.0 s"), ("b × 3", "3.0 s")]


@pytest.mark.parametrize(
    "seconds, marks",
    [
        (0.622, ["0 s", "200 ms", "400 ms", "600 ms", "800 ms"]),
        (0.004, ["0 s", "1 ms", "2 ms", "3 ms", "4 ms"]),
        (3, ["0 s", "500 ms", "1 s", "1.5 s", "2 s", "2.5 s", "3 s"]),
        (170, ["0 s", "30 s", "1 m", "1 m 30 s", "2 m", "2 m 30 s", "3 m"]),
        (610, ["0 s", "2 m", "4 m", "6 m", "8 m", "10 m", "12 m"]),
    ],
)
def test_the_axis_of_a_flow_has_round_marks(seconds: float, marks: list[str]) -> None:
    node = graph.FlowNode("a", "shop.a", 1, (), [job("a", 0, JobState.COMPLETED, 0, seconds)])
    drawn = tracks.of_nodes([node], AT + timedelta(hours=1), str)
    assert drawn is not None
    assert list(drawn.marks) == marks


def test_nodes_that_are_alike_are_folded_into_one() -> None:
    """Members that a flow adds one by one, of one task and between the same others."""
    note = FlowNote(
        name="import",
        kind="flow",
        members=6,
        nodes=(
            ("1", "shop.split", 1, ()),
            *((str(n), "shop.part", 1, ("1",)) for n in range(2, 5)),
            ("5", "shop.part", 1, ()),
            ("6", "shop.merge", 1, ("2", "3", "4", "5")),
        ),
    )
    nodes = graph.folded(graph.nodes_of(FLOW, note, []))
    assert [(node.title, node.parts) for node in nodes] == [
        ("split", ("1",)),
        ("part × 3", ("2", "3", "4")),
        ("part", ("5",)),
        ("merge", ("6",)),
    ]
    assert nodes[-1].before == ("2", "5")


def test_over_time_an_attempt_that_failed_ends_where_it_ended() -> None:
    """A member that waits for its next attempt is not drawn as if its last one still ran."""
    done = job("a", 0, JobState.COMPLETED, 0, 1)
    waiting = job("b", 0, JobState.RETRYING, 10, None)
    failed = Entry(
        what="failed", at=AT + timedelta(seconds=12), attempt=1, claimed_at=waiting.claimed_at
    )
    waiting = msgspec.structs.replace(waiting, history=(failed,))
    nodes = [
        graph.FlowNode(name, f"shop.{name}", 1, (), [one]) for name, one in (("a", done), ("b", waiting))
    ]
    drawn = tracks.of_nodes(nodes, AT + timedelta(seconds=100), str)
    assert drawn is not None
    [_, row] = drawn.rows
    assert (row.label, row.took) == ("b", "2.0 s")
    bars = re.findall(r'<rect class="tone-(\w+)" x="([0-9.]+)" y="\d+" width="([0-9.]+)"', str(row.lane))
    [_, wait, ran] = [(tone, float(x), float(width)) for tone, x, width in bars]
    assert (wait[0], ran[0]) == ("wait", "retrying")
    assert ran[2] == pytest.approx(wait[2] * 2 / 88, rel=0.01)
    assert wait[1] == pytest.approx(ran[1] + ran[2], abs=0.2), "it waits from there until now"


def test_a_graph_of_what_is_under_way_has_open_edges_and_no_chain() -> None:
    members = [job("a", 0, JobState.RUNNING, 0, None), job("d", 0, JobState.BLOCKED, None, None)]
    members += [job("z", 0, JobState.READY, None, None)]  # added later: the note does not know it
    nodes = graph.nodes_of(FLOW, NOTE, members)
    assert [node.task for node in nodes][-1] == "shop.z"
    assert not any(node.is_critical for node in nodes)
    assert str(graph.draw(nodes, str)).count("is-open") == 4
    assert graph.draw([], str) == ""
    assert tracks.of_nodes([], AT, str) is None
    assert nodes[1].words == "not stored yet, or pruned"


def test_a_flow_is_seen_and_acted_on(web: Web) -> None:
    made = winch.chain(web.add.bind(1, 2), web.add.partial(b=3)).enqueue()
    listed = web.ask("GET", "/flows", headers=HTML).text
    assert f"/flows/{made.id}" in listed
    assert "0 of 2" in listed
    page = web.ask("GET", f"/flows/{made.id}", headers=HTML).text
    assert page.count('class="node') == 2
    token = form_token(page)

    def act(action: str, **more: str) -> int:
        data = {"form_token": token, "action": action, **more}
        return web.ask("POST", f"/flows/{made.id}", data=data, headers=HTML).status_code

    assert act("explode") == 422
    assert act("cancel") == 200, "it asks first"
    assert act("cancel", sure="yes") == 303
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
    settings = web.api("GET", "/queues/default/settings").json()["settings"]
    assert (settings["max_depth"], settings["backoff"], settings["on_full"]) == (9, "30s", "shed")
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
    assert send("/schedules/x%2Fy", action="remove") == 200, "it asks first"
    assert len(web.app.schedules.list()) == 1
    assert send("/schedules/x%2Fy", action="remove", sure="yes") == 303
    assert web.app.schedules.list() == []


@pytest.mark.parametrize(
    "ready, out, stored, words",
    [
        (0, 10, 10, "–"),
        (60, 10, 0, "~6 m"),
        (60, 70, 10, "~1 m"),
        (60, 10, 10, "keeps up"),
        (60, 10.000000001, 10, "keeps up"),
        (60, 10, 20, "growing"),
        (60, 0, 20, "not moving"),
    ],
)
def test_a_backlog_drains_by_what_leaves_less_what_comes(
    ready: int, out: float, stored: float, words: str
) -> None:
    queue = QueueInfo(name="mail", counts={JobState.READY: ready}, sessions=1)
    assert figures.drains_in(queue, out, stored) == words


def test_the_overview_and_the_list_of_queues_agree_on_what_drains(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    prepare(web.app)
    overview = web.ask("GET", "/", headers=HTML).text
    listed = web.ask("GET", "/queues", headers=HTML).text
    for name in ("mail", "search", "media"):
        found = []
        for page, key in ((overview, f"queue-{name}"), (listed, name)):
            row = re.search(rf'<tr[^>]*data-key="{key}".*?</tr>', page, re.DOTALL)
            assert row is not None, name
            found += re.findall(r">(keeps up|growing|not moving|empty|~[^<]+ [smh])<", row[0])[-1:]
        assert len(found) == 2, name
        assert found[0] == found[1], name


def test_errors_and_workers_are_facets_with_counts(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    prepare(web.app)
    page = web.ask("GET", "/jobs", headers=HTML).text
    aside = page[page.index('id="facets"') : page.index("</aside>")]
    assert re.search(r'q=error%3ACardDeclined"[^>]*>.*?<span class="n">24</span>', aside)
    worker = re.search(r'href="([^"]*q=worker%3A[^"]+)"[^>]*><span class="cut">mail-1</span>', aside)
    assert worker is not None
    chosen = web.ask("GET", worker[1], headers=HTML).text
    assert re.search(r"<i>worker:</i>mail-1</span>", chosen), "the chip has its name, not its session"
    assert chosen.count("<tr data-href") > 0
    assert "pay-1" not in chosen[chosen.index("<tbody") : chosen.index("</tbody>")]


def test_one_job_is_not_called_jobs(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    web.add.using(queue="low").enqueue(1)
    made = winch.flow("import")
    made.add(web.add.bind(1))
    flow = made.enqueue()
    for path, form in (
        ("/queues/low/purge", {}),
        ("/queues/low/move", {"to": "high"}),
        (f"/flows/{flow.id}", {"action": "cancel"}),
    ):
        page = web.ask("GET", "/queues/low", headers=HTML).text
        body = {**form, "form_token": form_token(page)}
        asked = web.ask("POST", path, data=body, headers=HTML).text
        assert "1 job" in asked, path
        assert "1 jobs" not in asked, path


def test_what_is_copied_as_curl_runs_in_a_shell(make_web: Callable[..., Web]) -> None:
    """The whole address, quoted; and the token of the environment where the server asks for one."""
    web = make_web("sqlite")
    job = web.add.enqueue(1, b=2)
    made = winch.flow("two")
    made.add(web.add.bind(1))
    flow = made.enqueue()
    for path, name in (
        (f"/jobs/{job.id}", f"/api/v1/jobs/{job.id}"),
        (f"/flows/{flow.id}", f"/api/v1/flows/{flow.id}"),
        ("/jobs?q=error:it's+%22bad%22", "/api/v1/jobs?q="),
    ):
        text = html.unescape(web.ask("GET", path, headers=HTML).text)
        found = [line for line in re.findall(r">(curl [^<]+)<", text) if name in line]
        assert found, path
        for line in found:
            words = shlex.split(line)
            assert words[-1].startswith(f"http://localhost{name}"), line
    wide = make_web("sqlite", auth="tokens")
    token = wide.token("admin")
    job = wide.add.enqueue(1)
    text = wide.ask("GET", f"/jobs/{job.id}", headers=HTML, token=token).text
    assert "Authorization: Bearer $WINCH_TOKEN" in html.unescape(text)
    assert token not in text
