"""The event loop of a worker."""

from __future__ import annotations

import sys

import pytest

from winch.cli.run import loop


async def fail() -> None:
    raise ValueError("the handler's own")


def test_a_failure_carries_no_traceback_of_a_missing_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)  # as where it is not installed
    with pytest.raises(ValueError, match="the handler's own") as raised:
        loop.run(fail())
    assert raised.value.__context__ is None
