"""What pages state as facts: attempts, members, waits, shares and the numbers beside a chart."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import winch
from tests.web.kit import Web
from winch import Retry
from winch.core.lifecycle import JobState
from winch.storage.crash_report import CrashReport
from winch.storage.params import ClaimRef
from winch.web.draw.charts import ChartRow, drawn
from winch.web.pages.show import age, ago, percent, share

HTML = {"accept": "text/html"}


def text_of(web: Web, path: str) -> str:
    page = web.ask("GET", path, headers=HTML)
    assert page.status_code == 200, page.text
    return " ".join(re.sub("<[^>]+>", " ", page.text).split())


@pytest.mark.parametrize("top", [0.0004, 0.7, 3.0, 90, 119, 300, 433, 500, 1000, 7000, 9000, 86_000])
def test_ticks_of_time_are_round_in_the_unit_that_is_shown(top: float) -> None:
    chart = drawn("t", [ChartRow("p50", "tone-a", [top])], ["now"], "s", unit="s")
    ticks = re.findall(r'text-anchor="end">([\d.]+) (?:ms|s|m|h)</text>', chart.svg)
    assert 1 <= len(ticks) <= 5
    for tick in ticks:
        assert len(tick.replace(".", "")) <= 3, ticks


def test_a_legend_has_no_figure_of_long_ago() -> None:
    """A queue that stood still since noon does not wait 250 ms now."""
    rows = [
        ChartRow("p50", "tone-a", [0.2, 0.25, None, None, None, None]),
        ChartRow("p95", "tone-b", [0.4, 0.4, 0.4, 0.4, 0.5, None]),
    ]
    chart = drawn("t", rows, list("abcdef"), "s", unit="s")
    assert [chart.last(row) for row in rows] == ["–", "500 ms"]


def test_a_share_has_one_decimal() -> None:
    shown = [percent(value) for value in (2.3333333333333335, 40, 40.0, 99.96, 0)]
    assert shown == ["2.3 %", "40 %", "40 %", "100 %", "0 %"]
    column = [share(value) for value in (2.3333333333333335, 1, 0, 0.01, 99.9, 100)]
    assert column == ["2.3 %", "1.0 %", "0 %", "< 0.1 %", "99.9 %", "100 %"]


def test_ages_in_lists_have_one_unit() -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)

    def shown(seconds: float) -> tuple[str, str]:
        moment = now - timedelta(seconds=seconds)
        return age(moment, now), ago(moment, now)

    assert shown(63) == ("1 m ago", "1 m 3 s ago")
    assert shown(400_000) == ("4 d ago", "4 d 15 h ago")
    assert shown(4.25) == ("4.2 s ago", "4.2 s ago")
    assert shown(0.2) == ("now", "now")
    assert shown(-6780) == ("in 1 h 53 m", "in 1 h 53 m"), "what is to come is not rounded by an hour"
    assert age(None, now) == "–"


def test_progress_is_shown_with_one_decimal(make_web: Callable[..., Web]) -> None:
    web = make_web("memory")
    job = web.add.enqueue(1)
    [claim] = web.claim()
    beat = {"token": claim["token"], "progress": {"percent": 7 / 3}}
    assert web.api("POST", f"/jobs/{job.id}/heartbeat", beat).status_code == 200
    shown = text_of(web, f"/jobs/{job.id}")
    assert "2.3 %" in shown
    assert "2.333" not in shown


def test_an_attempt_past_the_jobs_own_limit_is_not_of_that_limit(make_web: Callable[..., Web]) -> None:
    """A queue may allow more attempts than the task."""
    web = make_web("memory")

    @web.app.task(name="shop.weak", retry=Retry.fixed("0s", attempts=2))
    def weak() -> None:
        raise ValueError("no")

    job = weak.enqueue()
    web.app.queues.configure("default", retries=3)
    web.app.run_worker(burst=True)
    record = job.refresh().record
    assert (record.state, record.attempt, record.max_attempts) == (JobState.DEAD, 4, 2)
    for path in (f"/jobs/{job.id}", "/jobs"):
        assert "4 of 2" not in text_of(web, path)
    assert "Attempt 4 " in text_of(web, f"/jobs/{job.id}")


def test_a_crash_is_shown_beside_the_attempts_that_count(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")

    job = web.add.enqueue(1)
    driver = web.app.ready()
    [claim] = web.claim()
    driver.run(driver.crash(CrashReport([ClaimRef(job.id, claim["token"])], "killed by SIGKILL")))
    after = job.refresh().record
    assert (after.state, after.attempt, after.crashes) == (JobState.READY, 0, 1)
    assert "0 of 12, 1 crash" in text_of(web, f"/jobs/{job.id}")
    assert "0 of 12, 1 crash" in text_of(web, "/jobs")


def test_a_wait_for_the_jobs_before_it_is_not_scheduled(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    made = winch.flow("two")
    first = made.add(web.add.bind(1))
    made.add(web.add.bind(2), after=[first])
    flow = made.enqueue()
    ids = {job.args: job.id for job in web.app.flows.members(flow.id)}
    last = next(job_id for args, job_id in ids.items() if '"a":2' in args)
    before = text_of(web, f"/jobs/{last}")
    assert "waits for the jobs before it" in before
    web.app.run_worker(burst=True)
    after = text_of(web, f"/jobs/{last}")
    assert "Waited for the jobs before it" in after
    assert "scheduled" not in after.partition("Jobs that are")[0]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_batch_has_as_many_members_as_were_added(store: str, make_web: Callable[..., Web]) -> None:
    web = make_web(store)
    with winch.batch("forty", on_success=web.mail.bind("ada")) as batch:
        batch.enqueue(*(web.add.bind(n) for n in range(40)))
    [listed] = web.api("GET", "/flows").json()["flows"]
    assert listed["members"] == 40
    assert web.api("GET", f"/flows/{listed['id']}").json()["flow"]["members"] == 40
    assert "0 of 40" in text_of(web, "/flows")
    assert "0 of 40 jobs" in text_of(web, f"/flows/{listed['id']}")


def test_people_read_the_short_name_of_an_error(make_web: Callable[..., Web]) -> None:
    web = make_web("memory")
    job = web.add.enqueue(1)
    [claim] = web.claim()
    error: dict[str, Any] = {
        "type": "winch.engine.worker.attempt.JobTimeout",
        "message": "it took too long",
    }
    body = {"token": claim["token"], "is_final": True, "error": error}
    assert web.api("POST", f"/jobs/{job.id}/fail", body).status_code == 200
    [group] = web.api("GET", "/dead/groups").json()["groups"]
    for path in ("/", "/jobs", f"/jobs/{job.id}", "/dead", f"/dead/{group['group']}"):
        shown = text_of(web, path)
        assert "JobTimeout" in shown, path
        assert "winch.engine" not in shown, path
    assert "winch.engine" not in web.api("GET", f"/jobs/{job.id}/why").text
