"""A database file that other programs use: Winch opens it only where the URL allows that."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from winch import App, ConfigError
from winch.drivers.sqlite import driver as sqlite_driver
from winch.drivers.sqlite.driver import SqliteDriver

Patch = pytest.MonkeyPatch


@pytest.fixture(params=[True, False], ids=["affected", "fixed"])
def is_affected(request: pytest.FixtureRequest, monkeypatch: Patch) -> bool:
    """Whether the SQLite build has the WAL-reset bug."""
    has_bug: bool = request.param
    monkeypatch.setattr(sqlite_driver, "has_wal_reset_bug", lambda _: has_bug)
    return has_bug


def foreign(path: Path, mode: str = "delete", table: str = "orders") -> None:
    """What an application does to its own database."""
    conn = sqlite3.connect(path)
    conn.execute(f"PRAGMA journal_mode = {mode}")
    conn.execute(f"CREATE TABLE {table} (id INTEGER)")
    conn.commit()
    conn.close()


def mode_of(path: Path) -> str:
    conn = sqlite3.connect(path)
    mode: str = conn.execute("PRAGMA journal_mode").fetchone()[0]
    conn.close()
    return mode


def opened(path: Path, options: str = "") -> None:
    driver = SqliteDriver.from_url(f"sqlite:///{path}{options}")
    try:
        driver.migrate()
    finally:
        driver.close()


def test_the_journal_mode_of_a_foreign_file_stays(tmp_path: Path, is_affected: bool) -> None:
    path = tmp_path / "shop.db"
    foreign(path)
    with pytest.raises(ConfigError, match=r"tables of another program \(orders\).*\?shared=1") as caught:
        opened(path)
    assert ("WAL-reset bug" in str(caught.value)) is is_affected
    assert mode_of(path) == "delete"
    conn = sqlite3.connect(path)
    assert [name for (name,) in conn.execute("SELECT name FROM sqlite_master")] == ["orders"]
    conn.close()


def test_a_foreign_file_in_wal_mode_is_refused_where_rows_can_be_lost(
    tmp_path: Path, is_affected: bool
) -> None:
    path = tmp_path / "shop.db"
    foreign(path, "wal")
    if is_affected:
        with pytest.raises(ConfigError, match="WAL-reset bug"):
            opened(path)
    else:
        opened(path)


def test_the_url_allows_a_shared_file(tmp_path: Path, is_affected: bool) -> None:
    path = tmp_path / "shop.db"
    foreign(path)
    opened(path, "?shared=1")
    assert mode_of(path) == "wal"
    if is_affected:
        with pytest.raises(ConfigError, match="WAL-reset bug"):
            opened(path, "?shared=0")


@pytest.mark.usefixtures("is_affected")
def test_tables_made_through_winch_are_no_sign_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "winch.db"
    for name in ("orders", "customers"):
        app = App(f"sqlite:///{path}")
        with app.transaction() as conn:
            conn.execute(f"CREATE TABLE {name} (id INTEGER)")
            conn.execute(f"CREATE INDEX by_{name} ON {name} (id)")
        app.close()
    opened(path)


def test_a_table_that_another_program_adds_later_is_found(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sqlite_driver, "has_wal_reset_bug", lambda _: True)
    path = tmp_path / "winch.db"
    app = App(f"sqlite:///{path}")
    with app.transaction() as conn:
        conn.execute("CREATE TABLE known (id INTEGER)")
    app.close()
    foreign(path, "wal", "stranger")
    with pytest.raises(ConfigError, match=r"another program \(stranger\)"):
        opened(path)


def test_a_rolled_back_table_is_not_noted(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sqlite_driver, "has_wal_reset_bug", lambda _: True)
    path = tmp_path / "winch.db"
    app = App(f"sqlite:///{path}")
    with contextlib.suppress(ZeroDivisionError), app.transaction() as conn:
        conn.execute("CREATE TABLE orders (id INTEGER)")
        _ = 1 / 0
    app.close()
    foreign(path, "wal")
    with pytest.raises(ConfigError, match=r"another program \(orders\)"):
        opened(path)


@pytest.mark.parametrize(
    "use",
    [
        lambda app: app.jobs.list(),
        lambda app: app.migrate(),
        lambda app: app.transaction().__enter__(),
    ],
)
def test_every_use_of_the_app_is_refused(
    tmp_path: Path, monkeypatch: Patch, use: Callable[[App], object]
) -> None:
    monkeypatch.setattr(sqlite_driver, "has_wal_reset_bug", lambda _: True)
    path = tmp_path / "shop.db"
    foreign(path)
    app = App(f"sqlite:///{path}")
    with pytest.raises(ConfigError, match="shared=1"):
        use(app)
    assert mode_of(path) == "delete"
    app.close()
