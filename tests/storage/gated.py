"""Gates for the random walk: every kind, alone and together."""

from __future__ import annotations

from winch.core.gates.uses import (
    BUCKET,
    FIFO,
    FIXED,
    LIMIT,
    RATE,
    SCOPE,
    SLIDING,
    BreakerSpec,
    GateUse,
)

ONE = GateUse("limit:one", LIMIT, "limit:one", n=1)
TWO = GateUse("limit:two", LIMIT, "limit:two", n=2)
TURNS = GateUse("fifo:acct", FIFO)
MINUTE = 60_000_000
SLOW = GateUse("rate:slow", RATE, "rate:slow", n=2, per=MINUTE, how=SLIDING)
FIXED_RATE = GateUse("rate:fixed", RATE, "rate:fixed", n=2, per=MINUTE, how=FIXED)
DRIPS = GateUse("rate:drips", RATE, "rate:drips", n=6, per=MINUTE, how=BUCKET, burst=2, weight=2)
TRIES = GateUse("budget:tries", RATE, "budget:tries", n=1, per=MINUTE, is_for_retries=True)
BANK = GateUse(
    "scope:bank",
    SCOPE,
    breaker=BreakerSpec(failures=0.5, of=2, window=10 * MINUTE, hold=MINUTE // 2),
)
GATES: tuple[tuple[GateUse, ...], ...] = (
    (),
    (ONE,),
    (TWO,),
    (TURNS,),
    (ONE, TWO),
    (TURNS, TWO),
    (SLOW,),
    (FIXED_RATE, TWO),
    (DRIPS,),
    (SLOW, TRIES),
    (BANK,),
    (BANK, ONE),
)
