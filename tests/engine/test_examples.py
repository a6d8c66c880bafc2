"""The examples run, each to the end it promises."""

from __future__ import annotations

import pytest

from examples import checkout, fan_out, nightly_report, payment
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


def test_a_newsletter_is_told_of_once() -> None:
    with virtual(fan_out.app) as world:
        made = fan_out.publish("May", 1100)
        world.run_all()
        assert made.result() == "May: 1098 of 1100 delivered"


def test_a_report_is_bound_and_its_audit_calls_somebody() -> None:
    with virtual(nightly_report.app) as world:
        made = nightly_report.make(3)
        nightly_report.audit()
        world.run_all(within="30d")
        assert made.result() == "page 0 | page 1 | page 2"
    assert nightly_report.pager == ["audit failed"]
