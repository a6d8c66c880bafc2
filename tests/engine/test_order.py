"""Queues in strict order, or by weight."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from winch import ConfigError
from winch.engine.order import QueueOrder


def test_without_weights_the_first_queue_is_always_first() -> None:
    order = QueueOrder.parse("critical,default", random.Random(1))
    assert {order.next() for _ in range(20)} == {("critical", "default")}


def test_weights_decide_how_often_a_queue_leads() -> None:
    order = QueueOrder.parse("a:5,b:3,c:1", random.Random(1))
    leads = Counter(order.next()[0] for _ in range(9000))
    assert leads["a"] == pytest.approx(5000, rel=0.05)
    assert leads["b"] == pytest.approx(3000, rel=0.07)
    assert leads["c"] == pytest.approx(1000, rel=0.12)
    assert sorted(order.next()) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("a:5,b", "every queue a weight, or none"),
        ("a:x", "whole number"),
        ("a:0", "at least 1"),
        ("a,a", "named twice"),
        ("", "non-empty"),
    ],
)
def test_a_wrong_queue_list_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QueueOrder.parse(text, random.Random(1))
