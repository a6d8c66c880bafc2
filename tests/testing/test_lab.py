"""The reliability lab: its parts fit together, a seed tells the same story twice, some seeds run."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from lab.__main__ import choose, pairs
from lab.faults import FAULTS, QUICK
from lab.fuzz import TARGETS, findings
from lab.mutations import MUTATIONS, PACKAGE
from lab.report import PAGE, page
from lab.results import Result, keep, load
from lab.run import shortest
from lab.simulate import simulate
from lab.stores import STORES
from lab.world import Simulation
from winch.core.errors import ConfigError
from winch.engine.order import QueueOrder
from winch.testing.history import Violation

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 25


def test_each_fault_is_on_a_store_that_exists_and_says_what_it_does() -> None:
    for name, fault in FAULTS.items():
        assert re.fullmatch(r"F\d+[a-z]?", name)
        assert fault.title
        assert fault.stores
        assert set(fault.stores) <= set(STORES)
        assert set(fault.own_stores) <= set(fault.stores)
        if fault.is_virtual:
            continue
        # Who does not say how it is seen to have happened could do nothing and pass.
        assert fault.observed.__qualname__ != "Fault.observed"
    assert set(QUICK) <= set(FAULTS)


def test_pairs_follow_from_the_seed_and_share_a_store() -> None:
    drawn = pairs(20, None, 7)
    assert drawn == pairs(20, None, 7)
    assert drawn != pairs(20, None, 8)
    for faults, store in drawn:
        assert all(store in fault.stores for fault in faults)


def test_the_command_names_what_it_does_not_know() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "winch.testing.chaos", "--fault", "F99"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert "no fault named F99; there are: F1, " in done.stderr


def test_a_quick_run_makes_each_of_its_faults_once() -> None:
    class Said:
        fault, store, quick = None, None, True

    runs = choose(Said())  # type: ignore[arg-type]
    assert [fault.name for faults, _ in runs for fault in faults] == list(QUICK)


def test_results_are_kept_beside_the_earlier_ones(tmp_path: Path) -> None:
    result = Result(
        store="sqlite", fault="F1", title="t", seed=1, is_ok=True, observed="1 killed", seconds=1.5
    )
    file = tmp_path / "results" / "chaos.jsonl"
    keep([result], file)
    keep([msgspec.structs.replace(result, seed=2)], file)
    assert [found.seed for found in load(file)] == [1, 2]


def test_the_shortest_evidence_comes_first_one_of_each_kind() -> None:
    found = [Violation("I3", "a", "w"), Violation("I3", "b", "w"), Violation("I4", "c", "w")]
    assert [violation.job for violation in shortest(found)] == ["a", "c", "b"]


def test_the_page_is_what_the_results_say() -> None:
    assert PAGE.read_text() == page(), "docs/reliability.md is old: run python -m lab.report"


def test_a_seed_tells_the_same_story_twice() -> None:
    stories = []
    for _ in range(2):
        world = Simulation(5)
        verdict = world.run()
        stories.append((verdict, world.lines, world.places))
    assert stories[0] == stories[1]


def test_a_world_can_end_while_a_worker_starts() -> None:
    """These seeds broke off at their end: a worker that had not started yet was told to stop."""
    for seed in (161, 180):
        assert Simulation(seed).run().is_ok


def test_simulated_fleets_keep_every_promise() -> None:
    tally = simulate(0, SEEDS)
    assert tally.seeds == SEEDS
    assert not tally.failed, "\n".join(tally.said)
    # They had something to get over.
    assert tally.counts["killed"] > SEEDS // 4
    assert tally.counts["reply lost"] > SEEDS
    assert tally.counts["rescued"] > SEEDS // 5
    assert tally.counts["cut off"] > 1


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_is_fed_it_is_taken_or_refused_in_words(name: str) -> None:
    assert not findings(name, examples=25)


def test_a_weight_in_digits_that_are_no_number_is_refused() -> None:
    """Found by fuzzing `-Q`: a raised two is a digit to Python, and no whole number."""
    with pytest.raises(ConfigError, match="whole number"):
        QueueOrder.parse("critical:5²", random.Random(0))


def test_every_mutation_still_finds_what_it_takes_out(tmp_path: Path) -> None:
    for number, mutation in enumerate(MUTATIONS):
        package = tmp_path / str(number)
        shutil.copytree(PACKAGE / "drivers", package / "drivers")
        mutation.apply(package)


@pytest.mark.slow
def test_many_simulated_fleets_keep_every_promise() -> None:
    tally = simulate(1000, 300)
    assert not tally.failed, "\n".join(tally.said)
