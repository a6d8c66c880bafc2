"""What operators do in pages: each action changes the store and leaves one line in the audit. A page
that asks or previews changes nothing and leaves none."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

import winch
from tests.web.kit import Web
from tests.web.test_pages import HTML, form_token
from winch.core.lifecycle import JobState

STORES = ["memory", "sqlite"] + [
    pytest.param(store, marks=[pytest.mark.slow, pytest.mark.servers]) for store in ("postgres", "redis")
]


class Operator:
    """Sends the forms of pages and reads the audit."""

    def __init__(self, web: Web) -> None:
        self.web, self.app = web, web.app
        self._token = form_token(web.ask("GET", "/limits", headers=HTML).text)
        self._seen = 0

    def page(self, path: str, status: int = 200) -> str:
        answer = self.web.ask("GET", path, headers=HTML)
        assert answer.status_code == status, answer.text
        return _plain(answer.text)

    def send(self, path: str, status: int = 303, /, **form: str) -> httpx.Response:
        data = {"form_token": self._token, **form}
        answer = self.web.ask("POST", path, data=data, headers=HTML)
        assert answer.status_code == status, answer.text
        return answer

    def asks(self, path: str, **form: str) -> str:
        """A form that is answered by a question or a preview; the audit has no line of it."""
        text = _plain(self.send(path, 200, **form).text)
        assert self.lines() == []
        return text

    def lines(self) -> list[dict[str, Any]]:
        """The lines of the audit since the last look, oldest first."""
        found: list[dict[str, Any]] = self.web.api("GET", "/audit?limit=200").json()["lines"][::-1]
        new, self._seen = found[self._seen :], len(found)
        return new

    def line(self) -> tuple[str, str, dict[str, Any]]:
        """The one line since the last look: its action, target and detail."""
        [line] = self.lines()
        assert (line["who"], line["via"]) == ("local", "dashboard")
        return line["action"], line["target"], line["detail"]

    def kill(self, *amounts: float, queue: str = "cards") -> list[str]:
        """Dead jobs of one group."""
        ids = []
        for amount in amounts:
            job = self.web.add.using(queue=queue).enqueue(int(amount), b=1)
            [claim] = self.web.claim(queue)
            error = {"type": "CardDeclined", "message": "card declined"}
            body = {"token": claim["token"], "is_final": True, "error": error}
            assert self.web.api("POST", f"/jobs/{job.id}/fail", body).status_code == 200
            ids.append(job.id)
        self.lines()
        return ids


def _plain(text: str) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text)))


@pytest.fixture(params=STORES)
def op(request: pytest.FixtureRequest, make_web: Callable[..., Web]) -> Operator:
    return Operator(make_web(request.param))


def counts(op: Operator, queue: str) -> dict[JobState, int]:
    found = {info.name: dict(info.counts) for info in op.app.queues.list()}
    return found.get(queue, {})


# -- queues --------------------------------------------------------------------------------------------


def test_a_queue_is_paused_for_a_time_and_resumed(op: Operator) -> None:
    op.web.add.using(queue="low").enqueue(1)
    op.send("/queues/low/pause", reason="a move", until="30m")
    [info] = op.app.queues.list()
    assert info.paused_at is not None
    assert "a move (until " in (info.pause_reason or "")
    assert op.line() == ("pause queue", "low", {"reason": "a move", "until": "30m"})
    assert "a move" in op.page("/queues/low")
    op.send("/queues/low/resume")
    assert op.app.queues.list()[0].paused_at is None
    assert op.line() == ("resume queue", "low", {})


def test_a_draining_queue_takes_no_new_jobs_until_it_is_resumed(op: Operator) -> None:
    low = op.web.add.using(queue="low")
    low.enqueue(1)
    op.send("/queues/low/drain", reason="moving house")
    assert op.line() == ("drain queue", "low", {"reason": "moving house"})
    op.app.client.writer.admission.forget()
    with pytest.raises(winch.QueueFull, match="drains"):
        low.enqueue(2)
    op.web.add.enqueue(3)
    assert "Drains" in op.page("/queues/low")
    assert [claim["args"] for claim in op.web.claim("low")] == [{"a": 1}], "workers empty it"
    op.send("/queues/low/resume")
    op.app.client.writer.admission.forget()
    low.enqueue(4)
    assert op.app.queues.settings() == {}


def test_a_purge_shows_the_count_and_requires_the_name_above_a_hundred(op: Operator) -> None:
    op.app.enqueue_many(op.web.add.using(queue="low").bind(n) for n in range(101))
    assert "101 jobs wait in this queue" in op.asks("/queues/low/purge")
    assert "Type low to go on." in op.asks("/queues/low/purge", sure="yes")
    assert "Type low to go on." in op.asks("/queues/low/purge", sure="yes", typed="lo")
    assert counts(op, "low")[JobState.READY] == 101
    op.send("/queues/low/purge", sure="yes", typed="low")
    assert counts(op, "low") == {}
    assert op.line() == ("purge queue", "low", {"deleted": 101, "cancelled": 0})
    op.web.add.using(queue="low").enqueue(1)
    op.send("/queues/low/purge", sure="yes")
    assert counts(op, "low") == {}


def test_jobs_are_counted_and_then_moved_to_another_queue(op: Operator) -> None:
    for n in range(3):
        op.web.add.using(queue="low").enqueue(n)
    op.web.add.using(queue="low", delay="1h").enqueue(9)
    assert "Move 4 jobs to high?" in op.asks("/queues/low/move", to="high")
    op.send("/queues/low/move", to="high", limit="2", sure="yes")
    assert (counts(op, "low"), counts(op, "high")) == (
        {JobState.READY: 2},
        {JobState.READY: 1, JobState.SCHEDULED: 1},
    )
    assert op.line() == ("move jobs", "low", {"to": "high", "moved": 2, "limit": 2})
    op.send("/queues/low/move", to="high", task="no.such", sure="yes")
    assert counts(op, "low") == {JobState.READY: 2}
    op.lines()
    assert len(op.web.claim("high")) == 1


def test_the_settings_of_a_queue_have_a_history(op: Operator) -> None:
    op.send("/queues/low/settings", concurrency="5", order="strict")
    assert op.app.queues.settings()["low"].concurrency == 5
    assert op.line() == ("configure queue", "low", {"settings": {"concurrency": 5, "order": "strict"}})
    page = op.page("/queues/low")
    assert "Who changed it" in page
    assert "local configure queue" in page
    assert "concurrency=5" in page


# -- dead letters --------------------------------------------------------------------------------------


def group_of(op: Operator) -> str:
    [group] = op.app.dead.groups()
    return group.fingerprint


def test_a_group_is_assigned_ignored_resolved_and_comes_back(op: Operator) -> None:
    op.kill(1, 2)
    group = group_of(op)
    op.send(f"/dead/{group}", action="note", assignee="ada", note="the bank is down")
    mark = op.app.dead.marks()[group]
    assert (mark.state, mark.assignee, mark.note, mark.by) == (
        "open",
        "ada",
        "the bank is down",
        "local",
    )
    detail = {"assignee": "ada", "note": "the bank is down"}
    assert op.line() == ("dead group", group, detail)
    assert "ada" in op.page("/dead")
    op.send(f"/dead/{group}", action="ignored")
    assert op.line() == ("dead group", group, {"state": "ignored"})
    assert "taken care of" in op.page("/dead")
    assert "CardDeclined" in op.page("/dead?show=ignored")
    op.send(f"/dead/{group}", action="resolved")
    assert op.app.dead.marks()[group].state == "resolved"
    op.lines()
    op.kill(3)
    assert "Back" in op.page("/dead"), "another job died of it"


def test_a_replay_is_previewed_with_a_diff_tried_on_one_and_carried_out(op: Operator) -> None:
    op.kill(1, 2, 3)
    group = group_of(op)
    form = {"rate": "500/s", "patch": '{"b": 7}', "attempts": "2"}
    page = op.asks(f"/dead/{group}", action="preview", **form)
    assert re.search(r'− +"b": 1', page), page
    assert re.search(r'\+ +"b": 7', page), page
    assert "3 are enqueued again, in about" in page
    assert "Replay 3 jobs" in page
    assert op.app.dead.groups()[0].count == 3
    op.send(f"/dead/{group}", action="one", **form)
    assert op.app.dead.groups()[0].count == 2
    action, _, detail = op.line()
    assert (action, detail["group"], detail["limit"]) == ("dead group", group, 1)
    op.send(f"/dead/{group}", action="replay", **form)
    assert op.app.dead.groups() == []
    claims = op.web.claim("cards", max=10)
    assert sorted(claim["args"]["a"] for claim in claims) == [1, 2, 3]
    assert {claim["args"]["b"] for claim in claims} == {7}
    assert op.line()[2]["patch"] == {"b": 7}


def test_a_preview_counts_what_a_replay_would_leave_out(op: Operator) -> None:
    op.kill(1)
    keyed = op.web.add.using(queue="cards", unique="card:7").enqueue(7)
    [claim] = op.web.claim("cards")
    body = {"token": claim["token"], "is_final": True,
            "error": {"type": "CardDeclined", "message": "card declined"}}  # fmt: skip
    assert op.web.api("POST", f"/jobs/{keyed.id}/fail", body).status_code == 200
    op.web.add.using(queue="cards", unique="card:7").enqueue(8)
    op.lines()
    group = group_of(op)
    page = op.asks(f"/dead/{group}", action="preview")
    assert "1 are enqueued again" in page
    assert "1 are left out" in page
    wrong = op.send(f"/dead/{group}", 422, action="preview", patch="[1]").text
    assert "must be a JSON object" in _plain(wrong)
    page = op.asks(f"/dead/{group}", action="preview", patch='{"a": "x"}')
    assert "2 are left out" in page, "the patch does not fit the task"
    assert op.app.dead.groups()[0].count == 2


def test_only_jobs_that_died_lately_are_replayed(op: Operator) -> None:
    op.kill(1, 2)
    group = group_of(op)
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert op.app.dead.replay(group=group, since=soon).matched == 0
    assert op.app.dead.replay(group=group, until=soon, limit=1).replayed == 1
    op.send(f"/dead/{group}", action="replay", since="1h")
    assert op.app.dead.groups() == []


def test_a_group_is_discarded_after_a_question(op: Operator) -> None:
    ids = op.kill(1, 2)
    group = group_of(op)
    assert "Discard 2 dead jobs?" in op.asks(f"/dead/{group}", action="discard")
    op.send(f"/dead/{group}", action="discard", sure="yes")
    assert op.app.dead.groups() == []
    assert op.web.api("GET", f"/jobs/{ids[0]}").status_code == 404
    action, _, detail = op.line()
    assert (action, detail["group"]) == ("dead group", group)


def test_the_trend_of_a_group_counts_its_deaths(op: Operator) -> None:
    op.kill(1, 2, 3)
    assert sum(op.app.dead.trend([group_of(op)], hours=2)[group_of(op)]) == 3
    assert "3 died in 24 hours" in op.web.ask("GET", "/dead", headers=HTML).text
    assert "CardDeclined in shop.add goes on, 3 in two hours" in op.page("/dead")


# -- limits, breakers, keys, tenants -------------------------------------------------------------------


def test_a_limit_is_previewed_set_and_reset(op: Operator) -> None:
    page = op.asks("/limits", action="preview", name="limit:shop.add", value="3")
    assert "Set it to 3" in page
    assert "No live job holds a key" not in page, "no key was asked for"
    assert op.app.limits.list() == []
    op.send("/limits", action="set", name="limit:shop.add", value="3")
    [limit] = op.app.limits.list()
    assert (limit.spec and limit.spec.n, limit.is_live, limit.by) == (3, True, "local")
    assert op.line() == (
        "limits", "limit:shop.add", {"action": "set", "value": 3, "before": "by the job"},
    )  # fmt: skip
    assert "limit shop.add 3 0 of 3" in op.page("/limits")
    assert "takes a number" in _plain(
        op.send("/limits", 422, action="set", name="limit:shop.add", value="5/s").text
    )
    op.send("/limits", action="reset", name="limit:shop.add")
    assert op.app.limits.list() == []
    op.send("/limits", action="set", name="tenant:acme", value="3")
    assert op.app.limits.list()[0].name == "tenant:acme"


def test_a_breaker_is_tripped_by_hand_listed_and_reset(op: Operator) -> None:
    op.send("/limits", action="trip", name="stripe", hold="10m", reason="provider outage")
    [scope] = op.app.limits.breakers()
    assert (scope.name, scope.reason, scope.is_tripped) == ("stripe", "provider outage", False)
    assert op.line()[1:] == ("stripe", {"action": "trip", "hold": "10m", "reason": "provider outage"})
    assert "stripe held" in op.page("/limits")
    op.send("/limits", action="untrip", name="stripe")
    [scope] = op.app.limits.breakers()
    assert scope.until <= datetime.now(UTC) + timedelta(seconds=1)
    assert op.line()[1:] == ("stripe", {"action": "untrip"})
    op.send("/limits", 404, action="untrip", name="other")


def test_a_unique_key_is_found_and_released(op: Operator) -> None:
    first = op.web.add.using(unique="order:7").enqueue(1)
    assert f"order:7 {first.id[-12:]}" in op.page("/limits?key=order")
    assert f"Job {first.id} holds it" in op.asks("/limits", action="release", name="order:7")
    op.send("/limits", action="release", name="order:7", sure="yes")
    assert op.line()[1:] == ("order:7", {"action": "release", "job": first.id})
    second = op.web.add.using(unique="order:7").enqueue(2)
    assert second.id != first.id
    assert op.app.jobs.unique_keys(prefix="order:7")[0].job == second.id
    assert op.app.jobs.get(first.id).state is JobState.READY
    op.send("/limits", 404, action="release", name="order:8")


def test_the_tenant_that_waits_longest_is_first(op: Operator) -> None:
    op.web.add.using(tenant="slow").enqueue(1)
    op.app.enqueue_many(op.web.add.using(tenant="busy", queue="mail").bind(n) for n in range(3))
    page = op.page("/tenants")
    assert re.search(r"slow waits longest: .*, with 1 job ready and none running", page), page
    found = op.web.api("GET", "/tenants").json()["tenants"]
    assert [(one["tenant"], one["ready"], one["queues"]) for one in found] == [
        ("slow", 1, {"default": 1}),
        ("busy", 3, {"mail": 3}),
    ]


# -- flows and schedules -------------------------------------------------------------------------------


def test_a_node_of_a_flow_is_run_again_with_all_that_comes_after(op: Operator) -> None:
    made = winch.flow("import")
    first = made.add(op.web.add.bind(1))
    second = made.add(op.web.add.bind(2), after=[first])
    made.add(op.web.add.bind(3), after=[second])
    flow = made.enqueue()
    op.app.run_worker(burst=True)
    assert op.app.flows.get(flow.id).state == "completed"
    [_, node, _] = [name for name, *_ in op.app.flows.get(flow.id).note.nodes]
    op.lines()
    assert "Rerun from here" in op.page(f"/flows/{flow.id}?node={node}")
    op.send(f"/flows/{flow.id}", action="rerun", node=node)
    states = [job.state for job in op.app.flows.members(flow.id)]
    assert sorted(states) == [JobState.COMPLETED, JobState.READY, JobState.READY]
    action, target, detail = op.line()
    assert (action, target, detail["jobs"]) == ("flow", flow.id, 2)
    op.app.run_worker(burst=True)
    assert op.app.flows.get(flow.id).state == "completed"
    op.send(f"/flows/{flow.id}", 422, action="rerun", node="no such")


def test_a_backfill_is_previewed_and_carried_out(op: Operator) -> None:
    op.app.schedules.add("hourly", task="shop.add", every="1h", args={"a": 1})
    op.lines()
    form = {"start": "2026-01-01T00:00", "end": "2026-01-01T06:00"}
    page = op.asks("/schedules/hourly", action="preview", **form)
    assert "6 jobs are enqueued" in page
    assert "0 of 6 windows have a job already" in page
    op.send("/schedules/hourly", action="backfill", **form)
    assert counts(op, "default")[JobState.READY] == 6
    action, target, detail = op.line()
    assert (action, target, detail["enqueued"]) == ("schedule", "hourly", 6)
    assert "6 of 6 windows have a job already" in op.asks("/schedules/hourly", action="preview", **form)
    wrong = op.send("/schedules/hourly", 422, action="preview", start="soon", end="")
    assert "must be a date and a time" in _plain(wrong.text)


def test_the_week_ahead_counts_windows_by_the_hour(op: Operator) -> None:
    op.app.schedules.add("hourly", task="shop.add", cron="0 * * * *", args={"a": 1})
    page = op.web.ask("GET", "/schedules", headers=HTML).text
    cells = re.findall(r'class="heat-(\d)"', page)
    assert len(cells) == 7 * 24
    assert sum(cell != "0" for cell in cells) >= 6 * 24


# -- audit ---------------------------------------------------------------------------------------------


def test_the_audit_is_filtered_and_taken_away(op: Operator) -> None:
    op.send("/queues/low/pause", reason="=1+1")
    op.send("/queues/high/pause")
    op.send("/queues/low/resume")
    assert op.page("/audit?target=low").count("pause queue") == 1
    assert "resume queue" not in op.page("/audit?action=pause+queue").partition("Detail")[2]
    assert "No line matches" in op.page("/audit?actor=unknown")
    assert "No line matches" not in op.page("/audit?since=1h")
    found = op.web.api("GET", "/audit?target=low&action=pause+queue").json()["lines"]
    assert [line["target"] for line in found] == ["low"]
    rows = op.web.ask("GET", "/audit.csv?target=low").text.splitlines()
    assert len(rows) == 3
    assert rows[0] == "at,who,via,origin,action,target,detail"
    lines = op.web.ask("GET", "/audit.ndjson").text.splitlines()
    assert len(lines) == 3
    assert "credential" not in lines[0]
    assert [line.target for line in op.app.audit.list(target="high")] == ["high"]
