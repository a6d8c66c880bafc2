"""A plain job visits the files that docs/internals.md names, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.trace import trace
from tests.servers import Databases
from winch.core.lifecycle import TRANSITIONS

PAGE = Path(__file__).parents[2] / "docs/internals.md"


def documented(heading: str) -> set[str]:
    """The files in the table below this heading."""
    _, _, below = PAGE.read_text().partition(f"\n{heading}\n")
    table = below.partition("\n#")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", table, flags=re.MULTILINE))


def check(url: str, heading: str) -> None:
    named = documented("### In the engine") | documented(heading)
    visited: set[str] = set()
    called: set[str] = set()
    for is_async in (True, False):
        traced = trace(url, is_async=is_async)
        visited |= {*traced.files()}
        called |= traced.called
        verbs = {Path(name).stem for name in traced.sql()}
        assert verbs <= {*TRANSITIONS, "enqueue"}
    assert visited <= named
    # A file that loops use too may not stand out in every run: it has been called at least.
    assert named <= called


def test_a_plain_job_visits_the_documented_files_on_sqlite(sqlite_path: Path) -> None:
    check(f"sqlite:///{sqlite_path}", "### On SQLite")


@pytest.mark.servers
def test_a_plain_job_visits_the_documented_files_on_postgres(postgres_server: Databases) -> None:
    check(postgres_server.new_store(), "### On PostgreSQL")


@pytest.mark.slow
@pytest.mark.parametrize(
    "walk, heading", [("failure", "### When the handler fails"), ("limit", "### Under a limit")]
)
def test_the_other_walks_visit_the_files_that_the_page_names(
    walk: str, heading: str, sqlite_path: Path
) -> None:
    traced = trace(f"sqlite:///{sqlite_path}", is_async=True, walk=walk)
    plain = documented("### In the engine") | documented("### On SQLite")
    named = {file for file in documented(heading) if not file.startswith("core/")}
    assert named
    assert named.isdisjoint(plain)
    assert named <= {*traced.files()}
