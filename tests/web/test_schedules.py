"""Schedules and limits over HTTP and as pages."""

from __future__ import annotations

import re

import pytest

from tests.web.kit import OWN, Web
from winch.storage.params import JobFilter

HTML = {"accept": "text/html", **OWN}


@pytest.fixture
def with_schedule(web: Web) -> Web:
    web.app.schedules.add(
        "nightly <b>", task="shop.add", cron="0 2 * * *", tz="Europe/Berlin", args={"a": 1}
    )
    return web


def test_a_schedule_is_shown_with_its_next_windows(with_schedule: Web) -> None:
    web = with_schedule
    [one] = web.api("GET", "/schedules").json()["schedules"]
    assert (one["name"], one["cron"], one["tz"]) == ("nightly <b>", "0 2 * * *", "Europe/Berlin")
    found = web.api("GET", "/schedules/nightly%20%3Cb%3E").json()
    assert len(found["next"]) == 5
    assert found["runs"] == []
    assert web.api("GET", "/schedules/other").status_code == 404


def test_it_is_triggered_paused_skipped_and_removed(with_schedule: Web) -> None:
    web = with_schedule
    path = "/schedules/nightly%20%3Cb%3E"
    job = web.api("POST", f"{path}/trigger", {}).json()["job"]
    assert web.api("GET", f"/jobs/{job}").json()["task"] == "shop.add"
    paused = web.api("POST", f"{path}/pause", {"reason": "holidays"}).json()
    assert paused["pause_reason"] == "holidays"
    assert web.api("POST", f"{path}/resume", {}).json()["paused_at"] is None
    skipped = web.api("POST", f"{path}/skip", {}).json()["window"]
    assert skipped < web.api("GET", path).json()["next"][0]
    assert web.api("DELETE", path).status_code == 200
    assert web.api("GET", "/schedules").json() == {"schedules": []}
    actions = [line["action"] for line in web.api("GET", "/audit").json()["lines"]]
    assert actions == [
        "remove schedule",
        "skip window",
        "resume schedule",
        "pause schedule",
        "trigger schedule",
        "add schedule",  # by the library
    ]


def test_its_pages_show_it_and_act(with_schedule: Web) -> None:
    web = with_schedule
    text = web.ask("GET", "/schedules", headers=HTML).text
    assert "nightly &lt;b&gt;" in text
    assert "<b>" not in text.partition("<main")[2].partition("<dialog")[0].replace('<b class="sub">', "")
    page = web.ask("GET", "/schedules/nightly%20%3Cb%3E", headers=HTML)
    assert page.status_code == 200
    token = re.search(r'name="form_token" value="([0-9a-f]+)"', page.text)
    assert token
    done = web.ask(
        "POST",
        "/schedules/nightly%20%3Cb%3E",
        data={"form_token": token[1], "action": "trigger"},
        headers=HTML,
    )
    assert done.status_code == 303
    driver = web.app.ready()
    assert len(driver.run(driver.list_jobs(JobFilter(task="shop.add"))).jobs) == 1


def test_limits_are_shown(web: Web) -> None:
    web.app.limits.set("limit:shop.add", 5)
    [one] = web.api("GET", "/limits").json()["limits"]
    assert (one["name"], one["used"], one["waiting"]) == ("limit:shop.add", 0, 0)
    assert "limit:shop.add" in web.ask("GET", "/limits", headers=HTML).text


def test_past_windows_are_filled(with_schedule: Web) -> None:
    web = with_schedule
    path = "/schedules/nightly%20%3Cb%3E"
    body = {"start": "2026-03-01T00:00:00Z", "end": "2026-03-11T00:00:00Z"}
    seen = web.api("POST", f"{path}/backfill", {**body, "dry_run": True}).json()
    assert (seen["matched"], seen["enqueued"], len(seen["windows"]), seen["is_dry_run"]) == (
        10, 10, 10, True,
    )  # fmt: skip
    assert web.api("GET", "/jobs").json()["jobs"] == []
    for enqueued in (10, 0):
        done = web.api("POST", f"{path}/backfill", body).json()
        assert (done["enqueued"], done["existing"]) == (enqueued, 10 - enqueued)
    assert len(web.api("GET", "/jobs").json()["jobs"]) == 10
    again, first, look = web.api("GET", "/audit").json()["lines"][:3]
    assert {line["action"] for line in (again, first, look)} == {"backfill schedule"}
    assert (first["detail"]["enqueued"], look["detail"]["dry_run"]) == (10, True)
    wrong = web.api("POST", f"{path}/backfill", {"start": body["end"], "end": body["start"]})
    assert (wrong.status_code, "start must be before end" in wrong.text) == (422, True)
    assert web.api("POST", "/schedules/other/backfill", body).status_code == 404
