"""Queues in strict order, or by weight."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from winch import App, ConfigError
from winch.engine.worker.queues.order import AllQueues, QueueOrder, parse_queues, queues_of


def named(text: str) -> QueueOrder:
    order = parse_queues(text, random.Random(1))
    assert isinstance(order, QueueOrder)
    return order


def among(text: str, *known: str) -> QueueOrder:
    every = parse_queues(text, random.Random(1))
    assert isinstance(every, AllQueues)
    assert str(every) == text
    return every.among(known, random.Random(1))


def test_without_weights_the_first_queue_is_always_first() -> None:
    order = named("critical,default")
    assert {order.next() for _ in range(20)} == {("critical", "default")}


def test_weights_decide_how_often_a_queue_leads() -> None:
    order = named("a:5,b:3,c:1")
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
        ("a:²", "whole number"),
        ("-slow", "excludes a queue from"),
        ("critical,*", "give every queue a weight"),
        ("*,-slow:3", "has no weight"),
        ("*:1,slow:2,-slow", "both named and excluded"),
        ("*:0", "at least 1"),
        ("*,--slow", "begin with '-'"),
    ],
)
def test_a_wrong_queue_list_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_queues(text, random.Random(1))


def test_a_star_stands_for_every_known_queue_but_the_excluded() -> None:
    order = among("*,-slow", "mail", "slow", "default")
    assert order.names == ("default", "mail")
    leads = Counter(order.next()[0] for _ in range(2000))
    assert leads["mail"] == pytest.approx(1000, rel=0.1), "no queue comes before another"


def test_weights_beside_a_star_hold_for_the_named_queues() -> None:
    order = among("critical:5,*:2", "a", "b")
    assert str(order) == "a:2,b:2,critical:5"


def test_a_star_that_leaves_no_queue_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaves no queue"):
        among("*,-mail", "mail")


def test_the_same_forms_are_taken_as_a_list_or_a_mapping() -> None:
    rng = random.Random(1)
    assert str(queues_of(["*", "-slow"], rng)) == "*,-slow"
    assert str(queues_of({"*": 1, "critical": 5}, rng)) == "*,critical:5"
    with pytest.raises(ConfigError, match="list of names"):
        queues_of("*", rng)


@pytest.mark.parametrize("name", ["*", "-slow"])
def test_a_queue_cannot_be_named_like_a_choice_of_queues(name: str) -> None:
    app = App("memory://")
    with pytest.raises(ConfigError, match="begin with '-'"):
        app.task(queue=name)(print)
