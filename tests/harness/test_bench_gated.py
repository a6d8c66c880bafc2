"""The bench of flow control: what jobs note, how rows are judged, and short runs on a real store."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import table
from bench.__main__ import SCENARIOS, choose, parse
from bench.catalog import BEFORE, WINCH, Contender
from bench.contender import Failed, Workers
from bench.environments import CannotInstall, at_commit, environment
from bench.measure import Bench, Drain, Lengths, drain_once
from bench.scenario import Scenario, Series, Values, run_all
from bench.scenarios import gates_kept
from bench.scenarios.gated import KINDS, RIVALS, STORES
from bench.spans import late_rate, most_at_once, most_begun, most_of_a_key, overtaken
from bench.specs import Bound, NeverBehind, Own, Versus
from bench.stores import Cost, Stores

SECOND = 1_000_000_000


def key(number: int) -> str:
    return f"k{number % 2}"


# --- what jobs note ---------------------------------------------------------------------------------


def test_jobs_that_overlap_run_at_once_and_jobs_that_follow_do_not() -> None:
    assert most_at_once([]) == 0
    assert most_at_once([(1, 0, 10), (2, 10, 20), (3, 20, 30)]) == 1
    assert most_at_once([(1, 0, 10), (2, 5, 20), (3, 9, 11)]) == 3
    assert late_rate([(1, 0, 10)]) == 0
    # Of jobs that end at 1, 2, 3 and then every 10 ns the last three count.
    assert late_rate([(n, 0, at) for n, at in enumerate((1, 2, 3, 10, 20, 30))]) == 1e8


def test_jobs_of_one_key_are_counted_apart_from_the_others() -> None:
    spans = [(0, 0, 10), (1, 0, 10), (2, 10, 20), (3, 5, 20)]
    assert most_at_once(spans) == 3
    assert most_of_a_key(spans, key) == 2
    assert most_of_a_key(spans[:3], key) == 1


def test_starts_are_counted_within_any_window() -> None:
    spans = [(n, n * SECOND // 10, n * SECOND // 10) for n in range(30)]
    assert most_begun(spans, 1) == 10
    assert most_begun(spans, 0.5) == 5


def test_a_job_that_begins_after_a_later_one_of_its_key_was_overtaken() -> None:
    assert overtaken([(0, 0, 1), (1, 2, 3), (2, 4, 5)], key) == 0
    assert overtaken([(2, 0, 1), (1, 2, 3), (0, 4, 5)], key) == 1


def test_costs_of_a_cluster_are_taken_node_by_node() -> None:
    spent = Cost(9.0, 0, (4.0, 5.0)) - Cost(3.0, 0, (1.0, 2.0))
    assert (spent.seconds, spent.nodes) == (6.0, (3.0, 3.0))


# --- the rows ---------------------------------------------------------------------------------------


def test_every_row_compares_scenarios_that_exist() -> None:
    names = {one.name: {c.name for c in one.contenders(is_quick=False)} for one in SCENARIOS}
    for spec in table.SPECS:
        assert spec.scenario in names, spec
        if isinstance(spec, Own):
            assert spec.other in names, spec
        if isinstance(spec, Versus) and spec.peer != BEFORE.name:
            assert spec.peer in names[spec.peer_scenario or spec.scenario], spec
        if isinstance(spec, Bound) and spec.peer:
            assert spec.peer in names[spec.scenario], spec


def test_every_kind_on_every_store_and_every_peer_has_a_row() -> None:
    compared = {spec.scenario for spec in table.SPECS}
    kinds = {kind.name for kind in KINDS} - {"plain"}
    missing = {f"gated {store} {kind}" for store in STORES for kind in kinds} - compared
    assert missing == {"gated redis five steps"}  # no peer has them there, and no figure is asked for
    ahead = {spec.scenario for spec in table.SPECS if isinstance(spec, NeverBehind | Versus)}
    assert {f"gated {store} {kind}" for store, kind in RIVALS} <= ahead


def test_a_ratio_of_two_own_figures_may_have_to_be_small() -> None:
    [row] = [
        one for one in table.SPECS if isinstance(one, Own) and "Redis latency p50, fifo" in one.metric
    ]
    for value, ok in ((1.4, True), (1.6, False)):
        found = row.row(
            {
                "gated redis latency, fifo": {"winch": Series([{"p50_ms": value}])},
                "gated redis latency, plain": {"winch": Series([{"p50_ms": 1.0}])},
            }
        )
        assert (found.ok, found.how) == (ok, "ratio at most")


# --- running ----------------------------------------------------------------------------------------


def test_scenarios_of_one_family_take_turns_in_every_round() -> None:
    order: list[str] = []

    def named(name: str, **more: object) -> Scenario:
        def run(bench: Bench, contender: Contender) -> Values:
            order.append(name)
            return {"rate": 1.0}

        return Scenario(name, "redis", run, **more)  # type: ignore[arg-type]

    chosen = [named("a", family="f"), named("b", family="f", rounds=1), named("c")]
    nothing = Bench(stores=None, environments={})  # type: ignore[arg-type]  # not reached
    run_all(chosen, nothing, rounds=2, is_quick=False, absent={}, log=lambda _: None)
    assert order == ["a", "b", "a", "c", "c"]


def test_another_commit_takes_part_in_the_plain_scenarios_alone() -> None:
    options = parse(["--only", "pg drain", "--only", "gated pg", "--beside", "HEAD", "--peer", "none"])
    names = {one.name: [c.name for c in one.contenders(is_quick=False)] for one in choose(options)}
    assert names["pg drain"] == ["winch", "winch before"]
    assert names["gated pg fifo"] == ["winch"]
    with pytest.raises(CannotInstall, match="git knows no commit"):
        at_commit("no-such-commit")


def test_a_job_without_a_noted_end_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates_kept, "NOTE_SECONDS", 0.1)
    (tmp_path / "7.spans").write_text("0 1 2\n1 2 3\n2 3")  # the last line is still being written
    workers = Workers([], tmp_path, tmp_path / "log")
    assert len(gates_kept.all_spans(workers, 2)) == 2
    with pytest.raises(Failed, match="1 of 3 jobs noted no end"):
        gates_kept.all_spans(workers, 3)


@pytest.mark.parametrize(
    "gate",
    [
        "fifo",
        "retries",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("batches", "chords", "steps")),
    ],
)
def test_a_short_drain_of_a_kind_from_end_to_end(gate: str) -> None:
    drain = Drain(gate=gate, keys=5, spans=True)
    noted: list[tuple[int, int, int]] = []
    with Stores() as stores:
        bench = Bench(stores, {"winch": environment(WINCH)}, Lengths())

        def look(workers: Workers) -> None:
            noted.extend(gates_kept.all_spans(workers, 100))

        found = drain_once(bench, Contender(WINCH, "sqlite"), drain, 100, look)
    assert len({number for number, _, _ in noted}) == 100
    assert found["rate"] == pytest.approx(drain.runs(100) / found["seconds"])
    assert found["whole_rate"] < found["rate"]
    if gate == "fifo":
        assert most_of_a_key(noted, lambda n: f"k{n % 5}") == 1
        assert overtaken(noted, lambda n: f"k{n % 5}") == 0


def test_a_limit_that_is_passed_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    [gate] = [one for one in gates_kept.GATES if one.name == "limit"]
    spans = [(n, 0, 10) for n in range(5)]

    def drained(*given: object) -> Values:
        given[-1](None)  # type: ignore[operator]  # the look at the workers
        return {"rate": 1.0}

    monkeypatch.setattr(gates_kept, "drain_once", drained)
    monkeypatch.setattr(gates_kept, "all_spans", lambda *_: spans)
    nothing = Bench(stores=None, environments={})  # type: ignore[arg-type]  # not reached
    with pytest.raises(Failed, match="5 at once, and 4 are allowed"):
        gates_kept._kept(gate, nothing, Contender(WINCH, "sqlite"))
