"""What pages show about causes: a late queue, a worker that grows, charts by worker, tenants' time, and
replays of the dead jobs of a day."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.web.kit import Web
from tests.web.prepared import prepare, tasks_of
from tests.web.test_actions import Operator
from tests.web.test_dashboard import NOW, link, queue, session, text_of
from tests.web.test_pages import HTML
from winch import JobState
from winch.core.errors import ConfigError
from winch.core.policy.alerting import AlertRules
from winch.engine.observe.queue_samples import QueueSample, Sample
from winch.engine.observe.throughput import MINUTE, Series, TaskRate
from winch.engine.observe.usage import MIB, ProcessUsage
from winch.storage.params import QueueInfo
from winch.web.pages import figures, health, show
from winch.web.pages.dead import died
from winch.web.pages.health import health_of, reasons_of


def usage(*sizes: int, limit: int | None = None) -> ProcessUsage:
    return ProcessUsage(
        cpu=0.1, memory=sizes[-1] * MIB, max_memory=None if limit is None else limit * MIB, at=NOW,
        memories=sizes,
    )  # fmt: skip


@pytest.mark.parametrize(
    "sizes, grows",
    [
        ((60, 90, 120, 150, 180, 210), (60, 210, 50)),
        ((*[60] * 30, 80, 110, 140, 170, 200, 230), (80, 230, 50)),  # it began lately
        ((60, 60, 90, 90, 120, 150, 180, 200), (60, 200, 70)),  # it rests now and then
        ((60, 90, 120, 150, 180), None),  # too young
        ((60, 400, 400, 400, 400, 400), None),  # it has loaded a model
        ((60, 61, 62, 63, 64, 65), None),  # little
        ((900, 920, 940, 960, 980, 1000), None),  # little beside what it has
        ((60, 210, 60, 210, 60, 210), None),  # it gives back what it took
        ((), None),
    ],
)
def test_a_leak_is_distinguished_from_a_start_and_from_noise(
    sizes: tuple[int, ...], grows: tuple[int, int, float] | None
) -> None:
    growth = usage(*sizes).growth if sizes else ProcessUsage(cpu=0, memory=0, at=NOW).growth
    found = None if growth is None else (growth.start // MIB, growth.now // MIB, growth.seconds)
    assert found == grows


def test_a_worker_that_grows_is_a_finding_with_its_remedy() -> None:
    leaks, well = session("leaks", "q"), session("well", "q")
    seen = {"leaks": usage(60, 90, 120, 150, 180, 210, limit=510), "well": usage(60, 60)}
    found = health_of(
        queues=(), sessions=(leaks, well), groups=(), recent=Series(MINUTE, 0, [{}]), alerts=(),
        rules=AlertRules(), now=NOW, link=link, usage=seen,
    )  # fmt: skip
    [one] = found.findings
    assert one.what == "Worker leaks grows: 60 MB to 210 MB in 50 s"
    assert one.why == "its limit, 510 MB, is reached in about 1 m 40 s"
    assert (one.remedy, one.href) == ("Stop it", "/workers/leaks")


def reasons(one: QueueInfo, *rates: TaskRate, busy: int = 1) -> list[tuple[str, str]]:
    sessions = (session("w", "pay", slots=4, running=busy),)
    return [(reason.text, reason.remedy) for reason in reasons_of(one, sessions, rates, link)]


def test_a_late_queue_shows_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (health, figures):  # the newest minute is over
        monkeypatch.setattr(module, "recent_minutes", lambda: 5.0)
    late = queue("pay", 90, 252)
    usual = [TaskRate(completed=100, enqueued=100, run_seconds=40)] * 5
    assert reasons(late) == [("90 jobs are ready; 3 of 4 slots are free", "See the queue")]
    assert reasons(late, *usual, *usual) == [
        ("90 jobs are ready; 3 of 4 slots are free", "See the queue")
    ]
    slow = [TaskRate(completed=80, failed=20, enqueued=120, run_seconds=200)] * 5
    assert reasons(late, *usual, *slow, busy=4) == [
        ("all 4 slots of its workers are busy; 90 jobs are ready", "Add workers"),
        ("an attempt takes 2.0 s, 400 ms before", "See what runs"),
        ("20 % of its attempts fail, and are tried again", "See them"),
        ("120 jobs come in a minute, 100 attempts end", "Add workers"),
    ]
    held = queue("pay", 3, 252)
    held.counts[JobState.BLOCKED] = 40  # type: ignore[index]
    assert reasons(held)[0] == ("40 of its jobs wait at a limit", "See the limits")


def test_jobs_of_producers_that_count_nothing_still_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that only enqueues writes no rates: its jobs show in what ends and what waits."""
    for module in (health, figures):
        monkeypatch.setattr(module, "recent_minutes", lambda: 5.0)
    now = 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    one = queue("pay", 900, 1)
    before = Sample(queues={"pay": QueueSample(400, 0)}, slots=0, busy=0, at=now - 300)
    ends = TaskRate(completed=500)
    assert figures.arriving(ends, one, None) == 0
    assert figures.arriving(ends, one, before) == 200  # 100 end in a minute, and 100 more wait
    assert figures.drains_in(one, 100, 200) == "growing"
    shrinks = Sample(queues={"pay": QueueSample(1150, 0)}, slots=0, busy=0, at=now - 300)
    assert figures.arriving(ends, one, shrinks) == 50
    assert figures.drains_in(one, 100, 50) == "~18 m"
    # What workers have counted is never less.
    assert figures.arriving(TaskRate(completed=500, enqueued=600), one, shrinks) == 120
    found = reasons_of(one, (session("w", "pay", slots=9),), [ends, *[TaskRate()] * 4], link, before)
    assert found[0].text == "200 jobs come in a minute, 100 attempts end"


def test_a_sample_of_minutes_ago_is_read(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    prepare(web.app)
    now = datetime.now(UTC).timestamp()
    sample = web.app.client.run(figures.read_before(web.app.driver, now))
    assert sample is not None
    assert 4 * 60 <= now - sample.at <= 6 * 60
    assert sample.queues["payments"].ready > 600
    later = web.app.client.run(figures.read_before(web.app.driver, now + 1200))
    assert later is None, "nothing is known of the last minutes"


def test_the_overview_and_a_queue_have_the_same_objective(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    prepare(web.app)
    web.app.queues.configure("payments", max_age="30m")
    web.app.queues.configure("mail", max_age="50ms")
    overview = text_of(web.ask("GET", "/", headers=HTML).text)
    assert "payments is late" not in overview
    assert re.search(r"mail is late: .{2,10}, objective 50 ms", overview)
    assert "its objective is 50 ms" in text_of(web.ask("GET", "/queues/mail", headers=HTML).text)
    assert "Jobs wait" not in text_of(web.ask("GET", "/queues/payments", headers=HTML).text)


def test_each_group_of_a_task_has_a_trend_of_its_own(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    for words in ("ConnectionError: gone", "ValueError: no", "ValueError: no"):
        job = web.add.enqueue(1)
        [claim] = web.claim()
        name, _, message = words.partition(": ")
        given = {"token": claim["token"], "error": {"type": name, "message": message}, "is_final": True}
        assert web.api("POST", f"/jobs/{job.id}/fail", given).status_code == 200
    overview = web.ask("GET", "/", headers=HTML).text
    listed = web.ask("GET", "/dead", headers=HTML).text
    for name, number in (("ConnectionError", 1), ("ValueError", 2)):
        for page in (overview, listed):
            row = re.search(rf"<tr[^>]*>(?:(?!</tr>).)*{name}.*?</tr>", page, re.DOTALL)
            assert row is not None, name
            assert f'aria-label="{number} died in 24 hours' in row[0]


def test_the_queue_that_is_later_comes_first() -> None:
    found = health_of(
        queues=(queue("a", 30, 70), queue("b", 90, 252)), sessions=(session("w", "a", "b"),), groups=(),
        recent=Series(MINUTE, 0, [{}]), alerts=(), rules=AlertRules(), now=NOW, link=link,
    )  # fmt: skip
    assert [one.what for one in found.findings] == [
        "b is late: 4 m 12 s, objective 1 m",
        "a is late: 1 m 10 s, objective 1 m",
    ]


def test_the_page_of_a_late_queue_and_the_overview_agree(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    prepare(web.app)
    page = text_of(web.ask("GET", "/queues/payments", headers=HTML).text)
    assert re.search(r"Jobs wait 3 m( \d+ s)? its objective is 1 m", page)
    assert "All 24 slots of its workers are busy; 90 jobs are ready Add workers" in page
    overview = text_of(web.ask("GET", "/", headers=HTML).text)
    assert re.search(r"payments is late: 3 m( \d+ s)?, objective 1 m", overview)
    assert "all 24 slots of its workers are busy; 90 jobs are ready" in overview
    assert "Jobs wait" not in text_of(web.ask("GET", "/queues/mail", headers=HTML).text)


def test_the_charts_of_a_queue_have_a_range(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    prepare(web.app)

    def ended(query: str) -> int:
        page = web.ask("GET", f"/queues/payments?{query}", headers=HTML).text
        found = re.search(r"([\d,]+) attempts completed and ([\d,]+) failed in ", page)
        assert found, page
        return sum(int(number.replace(",", "")) for number in found.groups())

    now = int(datetime.now(UTC).timestamp())
    hour, quarter = ended(""), ended("range=15m")
    assert 0 < quarter < hour < ended("range=24h")
    assert 0 < ended(f"from={now - 1800}&to={now - 900}") < hour
    page = web.ask("GET", f"/queues/payments?from={now - 1800}&to={now - 900}", headers=HTML).text
    assert "Back to the last hour" in page
    assert 'aria-label="Charts" data-zoom' in page


def test_charts_by_worker_and_the_time_of_tenants(make_web: Callable[..., Web]) -> None:
    """The books name the worker that ran the jobs."""
    web = make_web("sqlite")
    for name, count in (("acme", 3), ("zoo", 1)):
        web.app.enqueue_many(web.add.using(tenant=name).bind(n) for n in range(count))
    web.app.run_worker(burst=True)
    page = web.ask("GET", "/?group=worker", headers=HTML).text
    assert "attempts a minute, by worker" in text_of(page)
    worker = web.app.workers.list(is_ended_too=True)[0].worker
    assert f"></span>{worker} <b>" in page
    found = {one["tenant"]: one for one in web.api("GET", "/tenants").json()["tenants"]}
    assert found["acme"]["started"] == 3
    assert 0 < found["zoo"]["spent_seconds"] < 5
    assert "Spent, 1 h" in text_of(web.ask("GET", "/tenants", headers=HTML).text)


def test_when_dead_jobs_died_is_a_day_of_the_pages_zone() -> None:
    token = show.ZONE.set("Asia/Tokyo")
    try:
        tokyo = ZoneInfo("Asia/Tokyo")
        midnight = datetime.now(tokyo).replace(hour=0, minute=0, second=0, microsecond=0)
        assert died(None) == (None, None)
        assert died("today") == (midnight, None)
        assert died("yesterday") == (midnight - timedelta(days=1), midnight)
        day = datetime(2026, 3, 1, tzinfo=tokyo)
        assert died("2026-03-01") == (day, day + timedelta(days=1))
        since, until = died("24h")
        assert until is None
        assert since is not None
        assert abs(datetime.now(UTC) - timedelta(hours=24) - since) < timedelta(seconds=5)
        with pytest.raises(ConfigError, match="died must be"):
            died("last week")
    finally:
        show.ZONE.reset(token)


def test_a_preview_of_a_slow_count_does_not_show_0(
    make_web: Callable[..., Web], monkeypatch: pytest.MonkeyPatch
) -> None:
    web = make_web("sqlite")
    op = Operator(web)
    op.kill(1, 2)
    group = web.app.dead.groups()[0].fingerprint
    monkeypatch.setattr("winch.web.pages.dead.PREVIEW_WAIT", 0.0)
    page = op.asks(f"/dead/{group}", action="preview", rate="50/s")
    assert "The group is large, and the count goes on" in page
    assert "Replay what matches" in page
    assert "Replay 0 jobs" not in page


def test_a_preview_counts_by_large_pages_whatever_the_pace(make_web: Callable[..., Web]) -> None:
    """A slow pace means small batches; a count has none."""
    web = make_web("memory")
    op = Operator(web)
    op.kill(*range(40))
    group = web.app.dead.groups()[0].fingerprint
    driver = web.app.ready()
    asked = 0
    list_jobs = driver.list_jobs

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal asked
        asked += 1
        return list_jobs(*args, **more)

    driver.list_jobs = counted  # type: ignore[method-assign]
    assert web.app.dead.replay(group=group, rate="1/s", dry_run=True).matched == 40
    assert asked == 1


def test_a_preview_that_cannot_be_carried_out_shows_the_reason(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    prepare(web.app)  # by an app of its own: this server does not know the tasks
    op = Operator(web)
    op.lines()
    group = next(one for one in web.app.dead.groups() if one.task == "billing.charge").fingerprint
    form = {"action": "preview", "patch": '{"amount": 12.5}'}
    refused = op.send(f"/dead/{group}", 422, **form)
    assert "is not registered here" in text_of(refused.text)
    tasks_of(web.app)
    assert "24 are enqueued again" in op.asks(f"/dead/{group}", **form)
    assert "0 are enqueued again" in op.asks(f"/dead/{group}", since="yesterday", **form)
    assert "24 are enqueued again" in op.asks(f"/dead/{group}", since="today", **form)
