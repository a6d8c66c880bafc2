"""The shop in five ways to deploy it, each with a server that is killed and audited books."""

from __future__ import annotations

import pytest

from tests.django.deployments import MODES, ORDERS, USER
from tests.django.test_shop import run_module
from tests.servers import Databases


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.servers
@pytest.mark.parametrize("mode", MODES)
def test_the_books_are_right_after_a_killed_server(mode: str, postgres_server: Databases) -> None:
    urls = [postgres_server.new_database() for _ in range(2)]
    try:
        found = run_module("tests.django.deployments", mode, *urls)
    finally:
        for url in urls:
            postgres_server.drop_database(url)
    orders, jobs = found["orders"], found["jobs"]
    assert found["killed"] == 1
    assert found["unanswered"] > 0, "the kill came after the last order"
    assert len(found["taken"]) > ORDERS // 2
    assert set(found["taken"]) <= set(orders), "an order that was answered is lost"
    assert not set(found["declined"]) & set(orders), "a declined order has left its row"
    assert len(orders) <= len(found["taken"]) + found["unanswered"]
    assert found["unlisted"] == {}
    shared = {job: [n for n, one in orders.items() if one == job] for job in orders.values()}
    assert [pair for pair in shared.items() if len(pair[1]) > 1] == [], found["taken"]
    assert sorted(orders.values()) == sorted(jobs), (
        "an order without its job, or a job without its order"
    )
    assert set(jobs.values()) == {"completed"}
    assert found["receipts"] == sorted(orders)
    # The worker's lines name the request and the user behind each job.
    lines = found["lines"]
    assert lines
    for line in lines:
        number = line.rpartition(" ")[2]
        assert f"request=r-{number} user={USER} job={orders[number]}" in line
