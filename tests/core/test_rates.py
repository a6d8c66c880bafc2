"""The counting of rates: what a claim takes at once, and windows with very many takes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from winch.core.gates.rates import MANY_TAKES, rate_use, written
from winch.core.gates.uses import BUCKET, FIXED, RATE, SLIDING, GateUse, Look

PER = 60_000_000


def use(n: int, how: str = SLIDING, per: int = PER) -> GateUse:
    return GateUse("rate:mail", RATE, n=n, per=per, how=how)


@given(
    st.sampled_from([SLIDING, FIXED, BUCKET]),
    st.lists(st.integers(0, 3 * PER), min_size=1, max_size=40),
    st.integers(1, 10),
)
def test_one_reading_for_many_jobs_counts_as_one_for_each(how: str, moments: list[int], n: int) -> None:
    at_once, state = rate_use(Look("rate:mail"), use(n, how)), None
    for now in sorted(moments):
        alone = rate_use(Look("rate:mail", state=state), use(n, how))
        next_at = alone.next_at(1, now)
        assert at_once.next_at(1, now) == next_at
        if next_at is None:
            alone.take(1, now)
            at_once.take(1, now)
            state = written(alone)
    assert state is None or written(at_once) == state


def test_takes_of_one_moment_are_kept_as_one() -> None:
    rate = rate_use(Look("rate:mail"), use(1000))
    for _ in range(500):
        rate.take(1, 5)
    assert json.loads(written(rate)) == {"takes": [[5, 500]]}


def test_a_window_with_very_many_takes_stays_short_and_is_never_too_generous() -> None:
    """A claim every 20 ms for three minutes: 9,000 takes, of which a minute counts."""
    n, step = 1_200, 20_000
    rate = rate_use(Look("rate:mail"), use(n))
    taken: list[int] = []
    longest = 0
    for place, now in enumerate(range(0, 3 * PER, step)):
        if rate.next_at(1, now) is None:
            rate.take(1, now)
            taken.append(now)
        if place % 50 == 0:  # as another worker reads it
            state = written(rate)
            longest = max(longest, len(json.loads(state)["takes"]))
            rate = rate_use(Look("rate:mail", state=state), use(n))
    assert MANY_TAKES < longest <= 3 * MANY_TAKES
    first = 0
    for place, moment in enumerate(taken):
        while taken[first] + PER <= moment:
            first += 1
        assert place - first + 1 <= n
    # The rate is used: what is counted for longer than a minute is less than one part in a hundred.
    assert len(taken) > 3 * n * 0.98
