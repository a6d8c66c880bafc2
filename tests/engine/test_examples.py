"""The examples run, each to the end it promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import (
    checkout,
    csv_import,
    fan_out,
    maintenance,
    nightly_report,
    payment,
    pipeline,
    reindex,
    scoring,
    webhook,
    welcome_mail,
)
from winch import JobState
from winch.testing import virtual


def test_a_checkout_that_is_approved_is_packed() -> None:
    with virtual(checkout.app) as world:
        job = checkout.checkout.enqueue(7, ["book", "pen"])  # type: ignore[call-arg]
        world.advance("1d")
        assert "approval:7" in job.why()
        checkout.app.signal("approval:7", {"ok": True}, id="click")
        world.run_all()
        assert job.result() == ["box with book", "box with pen"]
    assert checkout.stock.pop(7) == ["book", "pen"]
    assert checkout.money == ["charge 7"]
    checkout.money.clear()


@pytest.mark.parametrize(
    "answer, lines, money",
    [
        (None, ["book"], []),
        ({"ok": False}, ["book"], []),
        ({"ok": True}, ["lost"], ["charge 8", "refund ch-8"]),
    ],
)
def test_a_checkout_that_fails_is_undone(
    answer: dict[str, bool] | None, lines: list[str], money: list[str]
) -> None:
    with virtual(checkout.app) as world:
        job = checkout.checkout.enqueue(8, lines)  # type: ignore[call-arg]
        if answer is not None:
            checkout.app.signal("approval:8", answer)
        world.run_all()
        assert job.refresh().state is JobState.DEAD
    assert checkout.stock == {}
    assert checkout.money == money
    checkout.money.clear()


def test_a_payment_whose_answer_was_lost_is_made_once() -> None:
    with virtual(payment.app) as world:
        jobs = [payment.pay.enqueue(42, 995) for _ in range(2)]  # type: ignore[call-arg]
        world.run_all()
        assert [job.result() for job in jobs] == ["charge order-42"] * 2
    assert payment.provider.charges == {"order-42": 995}


def test_a_newsletter_is_reported_once() -> None:
    with virtual(fan_out.app) as world:
        made = fan_out.publish("May", 1100)
        world.run_all()
        assert made.result() == "May: 1098 of 1100 delivered"


def test_a_report_is_bound_and_its_audit_raises_an_alarm() -> None:
    nightly_report.pager.clear()  # another test runs this one on another store
    with virtual(nightly_report.app) as world:
        made = nightly_report.make(3)
        nightly_report.audit()
        world.run_all(within="30d")
        assert made.result() == "page 0 | page 1 | page 2"
    assert nightly_report.pager == ["audit failed"]


def test_a_welcome_mail_that_bounces_is_dead_and_one_without_an_answer_is_sent() -> None:
    with virtual(welcome_mail.app) as world:
        good = welcome_mail.welcome.enqueue("ada@home.example")  # type: ignore[call-arg]
        again = welcome_mail.welcome.enqueue("ada@home.example")  # type: ignore[call-arg]
        bad = welcome_mail.welcome.enqueue("bob@nowhere.example")  # type: ignore[call-arg]
        world.run_all()
        assert (good.refresh().state, again.id) == (JobState.COMPLETED, good.id)
        assert good.record.attempt == 3
        assert bad.refresh().state is JobState.DEAD
        assert bad.record.attempt == 1
    assert welcome_mail.server.sent == {good.id: "ada@home.example"}


def test_webhooks_arrive_in_order_when_the_customer_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with virtual(webhook.app) as world:
        for what in ("created", "paid", "shipped"):
            webhook.publish("acme", what)
            webhook.publish("other", what)
        world.advance("12h")
        assert [customer for customer, _ in webhook.arrived] == ["other"] * 3
        monkeypatch.setattr(webhook, "is_down", False)
        world.advance("2h")
    assert webhook.arrived[3:] == [("acme", "created"), ("acme", "paid"), ("acme", "shipped")]


def test_a_pipeline_publishes_what_could_be_made() -> None:
    with virtual(pipeline.app) as world:
        whole = pipeline.process("cat", "https://media.example/cat.mp4")
        partly = pipeline.process("dog", "https://media.example/small-dog.mp4")
        pipeline.process("owl", "https://media.example/gone.mp4")
        world.run_all()
        assert (whole.result(), partly.result()) == (3, 2)
    assert pipeline.published["cat"] == ["file:cat.mp4@240", "file:cat.mp4@480", "file:cat.mp4@1080"]
    assert pipeline.published["dog"] == ["file:small-dog.mp4@240", "file:small-dog.mp4@480"]


def test_an_import_goes_on_where_it_was() -> None:
    lines = [f"thing {n}" for n in range(350)]
    lines[250] = "cut"
    with virtual(csv_import.app) as world:
        job = csv_import.load.enqueue("\n".join(lines))  # type: ignore[call-arg]
        world.run_all()
        assert job.result() == 350
        assert job.record.attempt == 2
    assert len(csv_import.rows) == 350
    assert len(csv_import.reads) == 250 + 150, "only what came after the last checkpoint is read again"


def test_a_burst_of_edits_is_indexed_once() -> None:
    with virtual(reindex.app) as world:
        for n in range(5):
            reindex.edit(1, f"Draft {n}")
            world.advance("1s")
        reindex.edit(2, "Other")
        world.run_all()
    assert reindex.runs == [1, 2]
    assert reindex.index == {1: "draft 4", 2: "other"}


def test_scores_are_made_in_batches_with_an_outcome_each() -> None:
    with virtual(scoring.app) as world:
        jobs = [scoring.score.enqueue(scoring.Features(age=n - 1, clicks=1)) for n in range(100)]
        world.run_all()
        assert jobs[0].refresh().state is JobState.DEAD
        assert [job.result() for job in jobs[1:5]] == [1.0, 1.0, 0.5, pytest.approx(1 / 3)]
    assert sum(scoring.calls) == 99
    assert len(scoring.calls) < 10


def test_maintenance_goes_through_the_table_chunk_by_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINCH_URL", f"sqlite:///{tmp_path / 'people.db'}")
    maintenance.app.migrate()
    with maintenance.app.transaction() as conn:
        conn.execute("CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT)")
        conn.executemany("INSERT INTO person (name) VALUES (?)", [("ada",)] * 600)
    maintenance.upper_case.enqueue()  # type: ignore[call-arg]
    for _ in range(20):
        maintenance.app.run_worker(queues=["maintenance"], burst=True)
        if len(maintenance.app.jobs.list(state="completed")) == 3:
            break
    with maintenance.app.transaction() as conn:
        assert conn.execute("SELECT DISTINCT name FROM person").fetchall() == [("ADA",)]
    assert [job.record.result for job in maintenance.app.jobs.list()] == ["600", "500", "250"]
    maintenance.app.close()
