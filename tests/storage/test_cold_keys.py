"""A hundred thousand keys with one job each: claims stay as quick, and nothing is left of the keys."""

from __future__ import annotations

import pytest

from scripts.cold_keys import KINDS, STORES, measure, opened

pytestmark = [pytest.mark.servers, pytest.mark.slow]
KEYS = 100_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("store", STORES)
def test_many_keys_neither_slow_claims_nor_stay(store: str, kind: str) -> None:
    with opened(store) as found:
        seen = measure(found, kind, KEYS)
        found.few.close()
        found.many.close()
    assert seen.growth <= 1.3, seen
    assert seen.kept >= 500, "no gate was seen in the store while jobs ran"
    assert seen.left == 0, seen
