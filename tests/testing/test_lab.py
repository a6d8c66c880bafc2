"""The reliability lab: its parts fit together, a seed gives the same run twice, some seeds run."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lab import lanes, results
from lab.__main__ import choose, main, pairs
from lab.faults import FAULTS, QUICK
from lab.fuzz import TARGETS, findings
from lab.history import Violation
from lab.judge import _as_far_as_it_can_be_judged, shortest
from lab.lanes import Planned, apart
from lab.mutations import MUTATIONS, PACKAGE
from lab.report import PAGE, page
from lab.results import Result, keep, load
from lab.simulate import simulate
from lab.stores import STORES
from lab.world import Simulation
from winch.core.errors import ConfigError
from winch.engine.worker.queues.order import parse_queues

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 25


def test_each_fault_has_an_existing_store_and_a_description() -> None:
    for name, fault in FAULTS.items():
        assert re.fullmatch(r"F\d+[a-z]?", name)
        assert fault.title
        assert fault.stores
        assert set(fault.stores) <= set(STORES)
        assert set(fault.own_stores) <= set(fault.stores)
        if fault.is_virtual:
            continue
        # A fault without its own `observed` could do nothing and pass.
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
        [sys.executable, "-m", "lab", "--fault", "F99"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert "no fault named F99; there are: F1, " in done.stderr


def test_a_quick_run_makes_each_of_its_faults_once() -> None:
    class Options:
        fault, store, quick = None, None, True

    runs = choose(Options())  # type: ignore[arg-type]
    assert [fault.name for faults, _ in runs for fault in faults] == list(QUICK)


def test_results_are_kept_beside_the_earlier_ones(tmp_path: Path) -> None:
    result = Result(
        store="sqlite", fault="F1", title="t", seed=1, is_ok=True, observed="1 killed", seconds=1.5
    )
    file = tmp_path / "results" / "chaos.jsonl"
    keep([result], file)
    keep([msgspec.structs.replace(result, seed=2)], file)
    assert [found.seed for found in load(file)] == [1, 2]


def test_a_run_that_hangs_is_reported_as_one_failed_run() -> None:
    run = Planned.of([FAULTS["F18"]], "memory", 1)
    found = apart(run, seconds=1, limit=0.2, is_over=threading.Event())
    assert not found.is_ok
    assert found.observed == "broke off"
    assert found.violations[0].startswith("ended after 0.2 s")


def test_a_series_is_taken_up_where_it_was_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Planned] = []

    def play(runs: list[Planned], **_: object) -> Iterator[Result]:
        made.extend(runs)
        for run in runs:
            is_ok = len(made) > 3 or run.store != "redis"
            yield msgspec.structs.replace(run.broken(1.0, "a reason"), is_ok=is_ok)

    monkeypatch.setattr(lanes, "play", play)
    words = ["--fault", "F4", "--seed", "5", "--journal", str(tmp_path / "journal.jsonl")]
    assert main(words) == 1
    assert [(run.store, run.seed) for run in made] == [("sqlite", 5), ("postgres", 6), ("redis", 7)]
    assert main([*words, "--resume"]) == 0
    assert [(run.store, run.seed) for run in made[3:]] == [("redis", 7)]
    assert "3 runs, 0 failed" in capsys.readouterr().out
    assert main(words) == 0, "without --resume a series starts again"
    assert len(made) == 7


def test_checks_of_time_are_skipped_on_a_starved_machine() -> None:
    again, lost = (
        Violation("alive", "a", "run again"),
        Violation("I1", "b", "the store does not have it"),
    )
    late = Violation("I2", "c", "rescued 0:00:20 after the end of the lease; the limit is 0:00:10")
    still = Violation("I2", "d", "all is quiet, and it is still running")
    found = [again, lost, late, still]
    assert _as_far_as_it_can_be_judged(found, 2.0) == found
    kept = _as_far_as_it_can_be_judged(found, 19.0)
    assert kept[:2] == [lost, still]
    assert kept[2].words == "could not be judged with 19 processes for each core: 2 times run again"


def test_the_shortest_evidence_comes_first_one_of_each_kind() -> None:
    found = [Violation("I3", "a", "w"), Violation("I3", "b", "w"), Violation("I4", "c", "w")]
    assert [violation.job for violation in shortest(found)] == ["a", "c", "b"]


def test_the_page_matches_the_results() -> None:
    assert PAGE.read_text() == page(), "docs/reliability.md is out of date: run python -m lab.report"


def test_a_seed_gives_the_same_run_twice() -> None:
    stories = []
    for _ in range(2):
        world = Simulation(5)
        verdict = world.run()
        stories.append((verdict, world.lines, world.places))
    assert stories[0] == stories[1]


def test_a_world_can_end_while_a_worker_starts() -> None:
    """These seeds failed at their end: a worker that had not started yet got its stop signal."""
    for seed in (161, 180):
        assert Simulation(seed).run().is_ok


def test_simulated_fleets_keep_every_promise() -> None:
    tally = simulate(0, SEEDS)
    assert tally.seeds == SEEDS
    assert not tally.failed, "\n".join(tally.verdicts)
    # They had something to get over.
    assert tally.counts["killed"] > SEEDS // 4
    assert tally.counts["reply lost"] > SEEDS
    assert tally.counts["rescued"] > SEEDS // 5
    assert tally.counts["cut off"] > 1


@pytest.mark.parametrize("name", TARGETS)
def test_fuzzed_input_is_accepted_or_refused_with_a_message(name: str) -> None:
    assert not findings(name, examples=25)


def test_a_weight_in_digits_that_are_no_number_is_refused() -> None:
    """Found by fuzzing `-Q`: a raised two is a digit to Python, and no whole number."""
    with pytest.raises(ConfigError, match="whole number"):
        parse_queues("critical:5²", random.Random(0))


def test_every_mutation_still_finds_what_it_takes_out(tmp_path: Path) -> None:
    for number, mutation in enumerate(MUTATIONS):
        package = tmp_path / str(number)
        for file, _, _ in mutation.edits:
            copy = package / "drivers" / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PACKAGE / "drivers" / file, copy)
        mutation.apply(package)


@pytest.mark.slow
def test_many_simulated_fleets_keep_every_promise() -> None:
    tally = simulate(1000, 300)
    assert not tally.failed, "\n".join(tally.verdicts)


def test_only_the_reason_of_a_failed_run_is_kept(tmp_path: Path) -> None:
    """Not its logs, which are long, nor where this copy of the project lies."""
    root = Path(results.__file__).resolve().parents[1]
    violation = f'File "{root}/lab/run.py": waited\n--- worker-0.log\nmuch\nwaited'
    broken = results.Result(
        store="sqlite",
        fault="F1",
        title="",
        seed=1,
        is_ok=False,
        observed="",
        seconds=0,
        violations=(violation,),
    )
    results.keep([broken], tmp_path / "kept.jsonl")
    (kept,) = results.load(tmp_path / "kept.jsonl")
    assert kept.violations == ('File "lab/run.py": waited',)
