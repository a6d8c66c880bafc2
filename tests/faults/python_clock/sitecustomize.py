"""Moves Python's wall clocks, for machines without a C compiler: put this folder on PYTHONPATH.

Python imports a module of this name by itself at start-up. Everything Winch reads the wall clock with
goes through one of these; the C shim beside it also moves the clock of libraries.
"""

from __future__ import annotations

import datetime as dt
import mmap
import os
import struct
import time
from pathlib import Path

with Path(os.environ["WINCH_TEST_CLOCK"]).open("rb") as file:
    page = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
real_time, real_time_ns = time.time, time.time_ns


def offset() -> int:
    seconds: int = struct.unpack_from("=q", page)[0]
    return seconds


class MovedDatetime(dt.datetime):
    """`now` by the moved clock."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> MovedDatetime:
        return cls.fromtimestamp(time.time(), tz)


time.time = lambda: real_time() + offset()
time.time_ns = lambda: real_time_ns() + offset() * 1_000_000_000
dt.datetime = MovedDatetime  # type: ignore[misc]
