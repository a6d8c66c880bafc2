"""The Redis servers of the harness start whatever else listens on this machine."""

from __future__ import annotations

import socket

import pytest

from tests.redis_servers import RedisCluster, RedisServer
from tests.servers import BUS_OFFSET, free_port


@pytest.mark.parametrize("offset", [0, BUS_OFFSET])
def test_a_node_whose_port_was_taken_in_the_last_moment_takes_another(offset: int) -> None:
    node = RedisServer(settings={"cluster-enabled": "yes"})
    wanted = node.port
    try:
        with socket.socket() as other:
            other.bind(("127.0.0.1", wanted + offset))
            other.listen()
            node.start()
        assert node.is_answering()
        assert node.port != wanted
        kept = node.port
        node.kill9()
        node.start()
        assert node.port == kept
    finally:
        node.remove()


def test_no_two_servers_of_a_process_are_given_the_same_ports() -> None:
    given = [free_port() for _ in range(200)]
    assert len({*given, *(port + BUS_OFFSET for port in given)}) == 2 * len(given)


def test_a_cluster_of_three_pairs_is_whole_and_gone_at_the_end() -> None:
    with RedisCluster() as cluster:
        assert cluster.is_whole()
        assert len(cluster.nodes) == 6
    assert not any(node.is_running for node in cluster.nodes)
