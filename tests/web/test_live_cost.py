"""Live pages at 1,000 jobs a minute: the row under the pointer holds still. Slow."""

from __future__ import annotations

import pytest

from scripts.live_cost import PAGES, measure

pytestmark = pytest.mark.slow


def test_no_row_moves_under_the_pointer_at_a_thousand_jobs_a_minute(tmp_path: object) -> None:
    found = measure(f"sqlite:///{tmp_path}/live.db", 10.0, 1000)
    assert found.keys() == PAGES.keys()
    for name, cost in found.items():
        print(f"{name}: tab {cost.tab:.1%}, server {cost.server:.1%} of one processor")  # noqa: T201
        assert cost.changes, f"{name} did not change"
        assert cost.moved == 0, f"{name}: the row moved by {cost.moved:.0f} pixels"
