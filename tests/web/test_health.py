"""The health port by itself: access to each answer, and odd requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from winch.core.errors import ConfigError
from winch.engine.observe.health_server import MOST_HEAD, MOST_OPEN, HealthPort
from winch.engine.observe.worker_metrics import STILL, WorkerMetrics


def port_of(metrics: WorkerMetrics, **more: Any) -> HealthPort:
    more.setdefault("is_local", True)
    return HealthPort(live=metrics.live, ready=metrics.ready, metrics=metrics.render, **more)


def asked(port: HealthPort, *requests: bytes) -> list[bytes]:
    async def go() -> list[bytes]:
        number = await port.start("127.0.0.1", 0)
        answers = []
        for request in requests:
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(request)
            writer.write_eof()
            try:
                answers.append(await reader.read())
            except ConnectionResetError:
                answers.append(b"")
            writer.close()
        await port.stop()
        return answers

    return asyncio.run(go())


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: x", *headers, "", ""]).encode()


def test_other_machines_read_numbers_with_a_token_only() -> None:
    open_, closed, held = (
        port_of(WorkerMetrics()),
        port_of(WorkerMetrics(), is_local=False),
        port_of(WorkerMetrics(), is_local=False, metrics_token="s3cret"),
    )
    assert b"200 OK" in asked(open_, get("/metrics"))[0]
    [refused, live] = asked(closed, get("/metrics"), get("/livez"))
    assert b"403 Forbidden" in refused
    assert b"WINCH_METRICS_TOKEN" in refused
    assert b"200 OK" in live
    codes = [
        answer.split(b" ")[1]
        for answer in asked(
            held,
            get("/metrics"),
            get("/metrics", "authorization: Bearer wrong"),
            get("/metrics", "Authorization: Bearer s3cret"),
        )
    ]
    assert codes == [b"401", b"401", b"200"]


def test_odd_requests_are_survived() -> None:
    port = port_of(WorkerMetrics())
    answers = asked(port, b"", b"\r\n\r\n", b"GET\r\n\r\n", b"x" * (MOST_HEAD * 2), get("/livez"))
    assert answers[0] == b""
    assert b"400" in answers[1]
    assert answers[3] == b""
    assert b'{"status":"pass"}' in answers[-1]


@pytest.mark.parametrize(
    "spoil, which, reason",
    [
        (lambda v: setattr(v, "turned_at", v.turned_at - STILL - 1), "live", "not turned"),
        (lambda v: setattr(v, "is_stopping", True), "ready", "stopping"),
        (lambda v: setattr(v, "beaten_at", v.beaten_at - v.lease - 1), "ready", "heartbeat"),
        (lambda v: setattr(v, "running", lambda: ()), "ready", "begun a session"),
    ],
)
def test_a_failing_check_names_its_cause(
    spoil: Callable[[WorkerMetrics], None], which: str, reason: str
) -> None:
    metrics = WorkerMetrics(running=lambda: (1, 0))
    metrics.beaten_at = metrics.turned_at
    assert set(metrics.ready().values()) == {"pass"}
    spoil(metrics)
    assert reason in " ".join(getattr(metrics, which)().values())


def test_a_port_in_use_is_reported() -> None:
    async def go() -> None:
        first, second = port_of(WorkerMetrics()), port_of(WorkerMetrics())
        number = await first.start("127.0.0.1", 0)
        with pytest.raises(ConfigError, match="--health-port: cannot listen"):
            await second.start("127.0.0.1", number)
        await first.stop()

    asyncio.run(go())


def test_silent_connections_keep_no_probe_waiting() -> None:
    async def go() -> bytes:
        port = port_of(WorkerMetrics())
        number = await port.start("127.0.0.1", 0)
        silent = [await asyncio.open_connection("127.0.0.1", number) for _ in range(MOST_OPEN + 20)]
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(get("/livez"))
        answer = await reader.read()
        for _, one in [*silent, (reader, writer)]:
            one.close()
        await port.stop()
        return answer

    assert b"200 OK" in asyncio.run(go())
