"""`winch bench` measures every scenario on a real store, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import Command
from winch.cli.bench.command import verdict
from winch.cli.bench.runs import Figure

NAMES = [
    "enqueue single",
    "enqueue bulk",
    "enqueue concurrent",
    "drain coroutines",
    "drain functions",
    "drain isolated",
    "latency",
]


@pytest.fixture
def winch(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    assert command("migrate").code == 0
    return command


def test_it_measures_everything_and_leaves_no_job(winch: Command) -> None:
    answer = winch("bench", "--seconds", "50ms", "--yes", "--json")
    assert answer.code == 0, answer.err
    figures = answer.json["figures"]
    assert [one["name"] for one in figures] == NAMES
    assert all(one["per_second"] > 0 and one["jobs"] > 0 for one in figures)
    latency = figures[-1]
    assert 0 < latency["p50_ms"] <= latency["p99_ms"]
    assert any("idle worker" in sentence for sentence in answer.json["verdict"])
    assert set(winch("stats", "--json").json["jobs"].values()) == {0}


def test_one_measurement_can_be_chosen_and_is_shown_to_people(winch: Command) -> None:
    answer = winch("bench", "--seconds", "20ms", "--yes", "--only", "enqueue single")
    assert answer.code == 0, answer.err
    assert "enqueue single" in answer.out
    assert "drain" not in answer.out
    assert "durable commit" in answer.out or "own work" in answer.out
    assert "#" not in answer.err  # no progress bar without a terminal


def test_a_store_that_needs_no_migration_is_made(tmp_path: Path) -> None:
    fresh = Command(tmp_path)
    answer = fresh("bench", "--seconds", "20ms", "--yes", "--only", "enqueue single")
    assert answer.code == 0, answer.err


def test_bench_needs_a_confirmation_and_known_names(winch: Command) -> None:
    refused = winch("bench")
    assert refused.code == 2
    assert "--yes" in refused.err
    unknown = winch("bench", "--yes", "--only", "drain")
    assert unknown.code == 2
    assert "drain coroutines" in unknown.err


def test_the_verdict_names_what_is_busy() -> None:
    def figures(busy: float) -> dict[str, Figure]:
        return {name: Figure(name, 1000, 1.0, busy) for name in NAMES[:6]}

    waiting = " ".join(verdict(figures(0.2), "postgresql://localhost/shop"))
    assert "durable commit" in waiting
    assert "waits for the store 80% of the time" in waiting
    working = " ".join(verdict(figures(0.95), "sqlite:///winch.db"))
    assert "own work" in working
    assert "winch worker -p" in working
    assert "SQLite runs in this process too" in working
