"""The four drivers are built alike: the same families under verbs/, composed and not inherited."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import winch.drivers
from winch.drivers.memory import MemoryDriver
from winch.drivers.postgres.driver import PostgresDriver
from winch.drivers.redis.cluster.driver import RedisClusterDriver
from winch.drivers.redis.driver import RedisDriver
from winch.drivers.sqlite.driver import SqliteDriver
from winch.storage import families, kv_records, parcels

DRIVERS = Path(winch.drivers.__file__).parent
STORES = ("memory", "sqlite", "postgres", "redis")
CLASSES = (MemoryDriver, SqliteDriver, PostgresDriver, RedisDriver, RedisClusterDriver)
FAMILIES = {
    "claim": "ClaimVerbs",
    "enqueue": "EnqueueVerbs",
    "finish": "FinishVerbs",
    "gates": "GateVerbs",
    "kv": "KvVerbs",
    "moves": "MoveVerbs",
    "operators": "OperatorVerbs",
    "reads": "ReadVerbs",
    "schedules": "ScheduleVerbs",
    "sessions": "SessionVerbs",
    "upkeep": "UpkeepVerbs",
    "waits": "WaitVerbs",
}
# Beside the base and the families: what several families of one store share.
HELPERS = {
    "memory": {"taking_back", "unique_keys"},
    "sqlite": {"awaited", "changed_jobs", "permits"},
    "postgres": {"crashes", "gated_claims", "gated_finish", "permits", "unique_keys"},
    "redis": set[str](),
}
# What each of PostgreSQL's six is for, and what it would cost without it: docs/adr/0022.
MOST_INSERTS = {"sqlite": 4, "postgres": 6}
# The functions of a schema may insert jobs, too; SQLite has none.
STATEMENTS = {"sqlite": ("sql",), "postgres": ("sql", "migrations")}
INSERT = re.compile(r"\bINSERT\s+(?:OR\s+\w+\s+)?INTO\s+(?:\{schema\}\.|winch_)job\b", re.IGNORECASE)


def test_every_family_of_the_contract_has_a_module() -> None:
    declared = {
        name
        for module in (families, kv_records, parcels)
        for name in vars(module)
        if name.endswith("Verbs")
    }
    assert set(FAMILIES.values()) == declared


@pytest.mark.parametrize("store", STORES)
def test_verbs_has_the_same_modules_in_every_store(store: str) -> None:
    found = {file.stem for file in (DRIVERS / store / "verbs").glob("*.py")} - {"__init__"}
    assert found == {"base", *FAMILIES} | HELPERS[store]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("module", FAMILIES)
def test_a_family_is_one_class_with_the_name_of_its_contract(store: str, module: str) -> None:
    text = (DRIVERS / store / "verbs" / f"{module}.py").read_text()
    assert re.findall(r"^class (\w+Verbs)\b", text, re.MULTILINE) == [FAMILIES[module]]


@pytest.mark.parametrize("driver", CLASSES)
def test_a_driver_holds_its_families_instead_of_inheriting_them(driver: type) -> None:
    assert len(driver.__mro__) <= 4, driver.__mro__


def test_no_driver_leaves_a_verb_to_another_class() -> None:
    found = [
        str(file.relative_to(DRIVERS))
        for file in DRIVERS.rglob("*.py")
        if "NotImplementedError" in file.read_text()
    ]
    assert found == []


@pytest.mark.parametrize("store", STATEMENTS)
def test_few_statements_insert_jobs(store: str) -> None:
    """Each one repeats the columns of a job, and each has to be changed with them."""
    files = [file for folder in STATEMENTS[store] for file in (DRIVERS / store / folder).glob("*.sql")]
    found = sum(len(INSERT.findall(file.read_text())) for file in files)
    assert found <= MOST_INSERTS[store]
