"""Whether other programs use the database file: it has tables that were not made through Winch.

A connection that Winch does not know checkpoints outside Winch's lock. On a SQLite build with the
WAL-reset bug that can lose committed rows, so Winch refuses such a file unless the URL allows it
(`?shared=1`). Tables that the application makes in `app.transaction()` are noted and allowed: they are
no sign of another program.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from winch.core.errors import ConfigError

FIXED_IN = "3.51.3"
_BOOK = "tables made through Winch"
_NAMED = 5


def table_names(conn: sqlite3.Connection) -> set[str]:
    """The tables of the file that are neither Winch's nor SQLite's own."""
    rows = conn.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        r" AND name NOT LIKE 'winch\_%' ESCAPE '\' AND name NOT LIKE 'sqlite\_%' ESCAPE '\'"
    )
    return {name for (name,) in rows}


def other_tables(conn: sqlite3.Connection) -> list[str]:
    """The tables that some other program made."""
    names = table_names(conn)
    if not names:
        return []
    has_book = conn.execute("SELECT 1 FROM sqlite_master WHERE name = 'winch_book_line'").fetchone()
    if has_book is not None:
        rows = conn.execute("SELECT key FROM winch_book_line WHERE book = ?", (_BOOK,))
        names -= {name for (name,) in rows}
    return sorted(names)


def note_tables(conn: sqlite3.Connection, before: set[str]) -> None:
    """Note the tables that this transaction has made, as part of it."""
    made = sorted(table_names(conn) - before)
    conn.executemany(
        "INSERT OR REPLACE INTO winch_book_line (book, key, body) VALUES (?, ?, '')",
        [(_BOOK, name) for name in made],
    )


def refusal(conn: sqlite3.Connection, path: Path, *, has_bug: bool) -> str | None:
    """Why Winch must not open this file without `?shared=1`; None where it may."""
    others = other_tables(conn)
    if not others:
        return None
    named = ", ".join(others[:_NAMED]) + (" …" if len(others) > _NAMED else "")
    head = f"{path} holds tables of another program ({named})"
    own = "Give Winch a file of its own, such as sqlite:///winch.db"
    if has_bug:
        return (
            f"{head}. SQLite {sqlite3.sqlite_version} can lose committed rows when a connection that "
            f"Winch does not know checkpoints the file (the WAL-reset bug, fixed in {FIXED_IN}). {own}. "
            "If every write to this file goes through app.transaction() or ctx.transaction(), add "
            "?shared=1 to the URL"
        )
    mode: str = conn.execute("PRAGMA journal_mode").fetchone()[0]
    if mode == "wal":
        return None
    return (
        f"{head} and its journal mode is {mode!r}. Winch needs WAL and would switch the file for every "
        f"program that uses it. {own}; or add ?shared=1 to the URL to allow the switch"
    )


def refuse(conn: sqlite3.Connection, path: Path, *, has_bug: bool) -> None:
    """Raise ConfigError where `refusal` gives a reason."""
    if reason := refusal(conn, path, has_bug=has_bug):
        raise ConfigError(reason)
