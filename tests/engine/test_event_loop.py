"""The event loop of a worker and of a server."""

from __future__ import annotations

import asyncio
import sys

import pytest

from winch.engine.base import event_loop


async def fail() -> None:
    raise ValueError("the handler's own")


def test_a_failure_carries_no_traceback_of_a_missing_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)  # as where it is not installed
    with pytest.raises(ValueError, match="the handler's own") as raised:
        event_loop.run(fail())
    assert raised.value.__context__ is None


def test_it_is_uvloop_where_that_is_installed() -> None:
    pytest.importorskip("uvloop")

    async def module() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert event_loop.run(module()) == "uvloop"
