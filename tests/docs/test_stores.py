"""The table of stores matches what the drivers declare."""

from __future__ import annotations

from pathlib import Path

from winch.drivers.memory import MemoryDriver
from winch.drivers.postgres.driver import PostgresDriver
from winch.drivers.redis.driver import RedisDriver
from winch.drivers.sqlite.driver import SqliteDriver
from winch.storage.capabilities import Capabilities

DRIVERS = (SqliteDriver, PostgresDriver, RedisDriver, MemoryDriver)


def test_the_table_of_stores_is_what_the_drivers_declare() -> None:
    text = (Path(__file__).parents[2] / "docs/stores.md").read_text().partition("Four things differ")[2]
    rows = [line.strip("|").split("|")[1:] for line in text.splitlines() if line.startswith("| ")]
    head, *table = rows
    assert len(head) == len(DRIVERS)
    names = Capabilities.__struct_fields__
    assert len(table) == len(names), "one line for each capability, in their order"
    for name, cells in zip(names, table, strict=True):
        shown = [cell.strip().partition(",")[0] for cell in cells]
        has = [getattr(driver.capabilities, name) for driver in DRIVERS]
        assert shown == ["yes" if one else "no" for one in has], name
