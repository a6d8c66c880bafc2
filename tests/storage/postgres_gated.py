"""Jobs with gates for tests of the PostgreSQL driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from tests.storage.postgres_kit import (
    Store,
    completed,
    connected,
)
from winch.core.gates.uses import (
    FIFO,
    LIMIT,
    RATE,
    SCOPE,
    BreakerSpec,
    GateUse,
    with_gates,
)
from winch.core.job import Claim
from winch.drivers.postgres.driver import PostgresDriver
from winch.storage.params import Answer, Finish

MINUTE = 60_000_000


def ended(*claims: Claim) -> list[Finish]:
    return [replace(completed(claim), is_gated=True) for claim in claims]


def finish(driver: PostgresDriver, claims: Sequence[Claim]) -> None:
    assert driver.run(driver.finish(ended(*claims))) == [Answer.TOOK] * len(claims)


def gated(*uses: GateUse, tenant: str | None = None) -> dict[str, Any]:
    fifo = next((use.key.removeprefix("fifo:") for use in uses if use.kind == FIFO), None)
    return {"options": with_gates(None, uses, tenant), "tenant": tenant, "fifo": fifo}


def limit(key: str = "t", n: int = 2, weight: int = 1) -> GateUse:
    return GateUse(f"limit:{key}", LIMIT, "limit:t", n=n, weight=weight)


def fifo(key: str = "acct", **fields: Any) -> GateUse:
    return GateUse(f"fifo:{key}", FIFO, **fields)


def rate(how: str, n: int = 5, **fields: Any) -> GateUse:
    return GateUse(f"rate:{how}", RATE, f"rate:{how}", n=n, per=MINUTE, how=how, **fields)


SCOPED = GateUse("scope:bank", SCOPE, breaker=BreakerSpec(0.5, of=4, window=10 * MINUTE, hold=MINUTE))


def used(store: Store, key: str) -> int:
    with connected(store.url) as conn:
        row = conn.execute("SELECT winch.gate_used(%s)", [key]).fetchone()
    assert row is not None
    return int(row[0])
