"""Spinning for a reply before sleeping: when a connection does it, and when it does not."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.redis_servers import RedisServer
from winch.core.values.ids import job_id
from winch.drivers.redis.driver import RedisDriver
from winch.drivers.redis.fast import spin_wait as spinning
from winch.drivers.redis.fast.spin_wait import FEWEST, MOST, SpinWait, spin_wait
from winch.storage.params import NewJob

Pair = tuple[SpinWait, socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A spin-wait on the first of two connected sockets."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield SpinWait(ours), ours, theirs


def look_in_vain(watch: SpinWait) -> int:
    """How many calls sleep afterwards; all of them have by the time this returns."""
    watch.wait()
    sleeps = watch.sleeps
    for left in reversed(range(sleeps)):
        watch.wait()
        assert watch.sleeps == left, "a call that sleeps does not look"
    return sleeps


def test_a_caller_that_finds_a_reply_spins_again(pair: Pair) -> None:
    watch, ours, theirs = pair
    for _ in range(100):
        theirs.sendall(b"+OK\r\n")
        watch.wait()
        assert watch.sleeps == 0
        assert ours.recv(100) == b"+OK\r\n"


def test_each_vain_spin_doubles_the_sleeps_before_the_next(pair: Pair) -> None:
    watch, ours, theirs = pair
    assert [look_in_vain(watch) for _ in range(3)] == [FEWEST, 2 * FEWEST, 4 * FEWEST]
    while (sleeps := look_in_vain(watch)) < MOST:
        pass
    assert look_in_vain(watch) == sleeps == MOST
    theirs.sendall(b"+OK\r\n")
    for _ in range(20):  # a server that is near again
        watch.wait()
        assert watch.sleeps == 0
    assert ours.recv(100)
    assert look_in_vain(watch) == FEWEST


def test_a_closed_connection_is_seen_at_once(pair: Pair) -> None:
    watch, ours, theirs = pair
    theirs.close()
    watch.wait()
    assert watch.sleeps == 0
    assert ours.recv(100) == b""


def test_a_tls_connection_does_not_spin(pair: Pair) -> None:
    """A reply may have been read and not yet been asked for."""
    _, ours, _ = pair
    context = ssl.create_default_context()
    with context.wrap_socket(ours, server_hostname="localhost", do_handshake_on_connect=False) as sock:
        assert spin_wait(sock) is None


def test_a_lone_producer_spins_and_alternating_threads_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WINCH_FAST", "on")
    looks = []
    wait = SpinWait.wait

    def counted(watch: SpinWait) -> None:
        looks.append(watch)
        wait(watch)

    monkeypatch.setattr(SpinWait, "wait", counted)
    monkeypatch.setattr(spinning, "IN_A_ROW", float("inf"))  # however slow the machine is
    with RedisServer() as server, ThreadPoolExecutor(1) as other:
        driver = RedisDriver.from_url(server.url)

        def store(tick: int) -> bool:
            (stored,) = driver.run(
                driver.enqueue([NewJob(id=job_id(tick, bytes(8)), task="a", args="{}")])
            )
            return stored.is_new

        assert store(1)
        looks.clear()
        assert all(store(tick) for tick in range(2, 12))
        assert len(looks) == 10
        assert other.submit(store, 20).result()
        looks.clear()
        for tick in range(30, 40, 2):
            assert store(tick)
            assert other.submit(store, tick + 1).result()
        assert not looks
        driver.close()
