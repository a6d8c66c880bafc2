"""Jobs and Django's tables in one SQLite file, as SQLite 3.51.3 and later allow it."""

from __future__ import annotations

from pathlib import Path

from tests.django.test_shop import run_module


def test_an_enqueue_joins_the_transaction_of_djangos_own_file(tmp_path: Path) -> None:
    found = run_module("tests.django.shared_file", str(tmp_path / "shop.sqlite3"))
    assert found["seen"] == [1, 2]  # the rows of the jobs in each transaction
    assert found["jobs"] == [["1"]]  # and a rollback takes it back
    assert found["orders"] == found["receipts"] == ["1"]
