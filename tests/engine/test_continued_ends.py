"""Which ends a worker sends with a claim for the next job of their gate."""

from __future__ import annotations

import pytest

from winch import App
from winch.core.gates.uses import FIFO, LIMIT, GateUse, with_gates
from winch.drivers.memory import MemoryDriver
from winch.engine.base.system_clock import SystemClock
from winch.engine.observe.throughput import Tally
from winch.engine.worker.finisher import Finisher


class Never(MemoryDriver):
    continues_limits = False


class Small(Never):
    continues_small_limits = True


def limit(n: int, key: str = "limit:mail") -> GateUse:
    return GateUse(key, LIMIT, "limit:mail", n=n)


@pytest.mark.parametrize(
    "driver, use, continues",
    [
        (MemoryDriver, limit(1000), True),
        (Small, limit(10), True),
        (Small, limit(11), False),
        (Small, limit(2, "limit:mail=ada"), False),
        (Never, limit(1), False),
        (Never, GateUse("fifo:ada", FIFO), True),
    ],
)
def test_an_end_claims_where_its_store_and_its_slots_allow_it(
    driver: type[MemoryDriver], use: GateUse, continues: bool
) -> None:
    app = App("memory://")
    finisher = Finisher(driver(SystemClock()), app.runtime, None, Tally("t"), slots=10)
    assert finisher.continues(with_gates(None, [use])) is continues
