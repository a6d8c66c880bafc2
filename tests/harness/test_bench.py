"""The bench: its statistics, its table, what it writes, and one short measurement from end to end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from bench import report, table
from bench.catalog import PEERS, RAW, WINCH, Contender
from bench.contender import Failed, Unsupported, Workers
from bench.environments import ADAPTERS, environment
from bench.measure import Bench, Drain, Lengths, drain_once, enqueue_rate, percentile, rate_between
from bench.plot import plot
from bench.scenario import Results, Scenario, Series, Values, run_all
from bench.stores import Stores
from tests.server_guard import is_gone
from tests.servers import wait_until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/benchmarks.md"
KEYS = {"metric", "winch", "peer", "peer_value", "ratio", "must", "aim", "ok"}


def results(values: Mapping[tuple[str, str], Values]) -> Results:
    found: Results = {}
    for (scenario, name), measured in values.items():
        found.setdefault(scenario, {})[name] = Series([measured])
    return found


def about(stores: str, **versions: str) -> dict[str, object]:
    return {"stores": stores, "versions": versions, "settings": {}}


def row(metric: str, values: Mapping[tuple[str, str], Values]) -> table.Row:
    [found] = [one for one in table.rows(results(values)) if one.metric == metric]
    return found


# --- statistics -------------------------------------------------------------------------------------


def test_percentile_lies_between_its_neighbours() -> None:
    assert percentile([5], 99) == 5
    assert percentile([4, 1, 3, 2], 50) == 2.5
    assert percentile(range(101), 99) == 99
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_median_and_spread_are_over_the_rounds() -> None:
    series = Series([{"rate": 10.0}, {"rate": 40.0}, {"rate": 20.0, "p50_ms": 1.0}])
    assert series.median("rate") == 20
    assert series.spread("rate") == 4
    assert series.median("p50_ms") == 1
    assert series.median("p99_ms") is None


def test_rate_between_counts_takes_the_time_between_them() -> None:
    second = 1_000_000_000
    points = [(0, 0), (second, 100), (2 * second, 200), (6 * second, 400)]
    assert rate_between(points, 0, 200) == 100
    assert rate_between(points, 200, 400) == 50
    assert rate_between(points, 50, 150) == 100


# --- the table --------------------------------------------------------------------------------------


def test_every_line_that_the_page_asks_for_has_a_row_and_no_other() -> None:
    section = PAGE.read_text().partition("## Requirements")[2].partition("## Method")[0]
    asked = re.findall(r"^\| (.+?) \| .+ \| .+ \|$", section, flags=re.MULTILINE)[1:]
    assert len(asked) >= 17
    assert table.lines() == asked


def test_every_row_below_its_aim_names_what_would_close_the_gap() -> None:
    aimed = {spec.line for spec in table.SPECS if not isinstance(spec, table.NeverBehind)}
    assert set(table.CLOSING) == aimed


def test_the_distance_to_an_aim_is_how_many_times_better_it_would_have_to_be() -> None:
    drain = {("redis drain", "winch"): {"rate": 400.0}, ("redis drain", "bullmq"): {"rate": 100.0}}
    assert row("Redis drain", drain).to_aim == 2  # 4x of an aim of 8x
    assert row("PG latency p50", {("pg latency", "winch"): {"p50_ms": 1.8}}).to_aim == 2
    assert row("import winch", {}).to_aim is None


def test_an_unmeasured_row_is_neither_good_nor_bad() -> None:
    for one in table.rows({}):
        assert one.ok is None
        assert one.reason == "winch: not part of this run"
        assert one.as_json().keys() >= KEYS


def test_a_ratio_is_judged_by_its_must_and_its_aim() -> None:
    def drained(rate: float) -> table.Row:
        values = {
            ("pg drain", "winch"): {"rate": rate},
            ("pg drain", "graphile-worker"): {"rate": 100.0},
        }
        return row("PG drain, graphile-worker", values)

    assert (drained(149).ok, drained(149).is_aim_met) == (False, False)
    assert (drained(150).ok, drained(150).is_aim_met) == (True, False)
    assert (drained(250).ok, drained(250).is_aim_met) == (True, True)
    assert drained(250).ratio == 2.5


def test_a_limit_is_judged_without_any_peer() -> None:
    assert row("PG latency p99", {("pg latency", "winch"): {"p99_ms": 3.1}}).ok is False
    fast = row("PG latency p99", {("pg latency", "winch"): {"p99_ms": 1.9}})
    assert (fast.ok, fast.is_aim_met, fast.ratio) == (True, True, None)


def test_a_latency_ratio_is_good_when_small() -> None:
    values = {("redis latency", "winch"): {"p50_ms": 0.6}, ("redis latency", "huey"): {"p50_ms": 0.8}}
    found = row("Redis latency p50", values)
    assert (found.ok, found.is_aim_met) == (True, False)  # the aim is 0.5 ms, not a ratio


def test_behind_any_peer_is_behind_unless_it_promises_less() -> None:
    values = {
        ("sqlite single", "winch"): {"rate": 100.0},
        ("sqlite single", "huey"): {"rate": 90.0},
        ("sqlite single", "flexiq"): {"rate": 900.0},  # does not sync there
    }
    found = row("SQLite single, best peer measured", values)
    assert (found.peer, found.ok) == ("huey", True)


# --- running ----------------------------------------------------------------------------------------


def test_contenders_take_turns_and_failures_stay_with_their_reason() -> None:
    order: list[str] = []

    def run(bench: Bench, contender: Contender) -> Values:
        order.append(contender.name)
        if contender.name == "huey":
            raise Unsupported("no bulk enqueue")
        if contender.name == "celery":
            raise Failed("fell over")
        return {"rate": 1.0}

    scenario = Scenario("x", "redis", run, ("huey", "celery", "saq", "rq"))
    nothing = Bench(stores=None, environments={})  # type: ignore[arg-type]  # not reached
    found = run_all(
        [scenario], nothing, rounds=2, is_quick=False, absent={"rq": "no wheel"}, log=lambda _: None
    )
    assert order == ["winch", "huey", "celery", "saq", "winch", "saq"]
    assert len(found["x"]["winch"].rounds) == 2
    assert {name: one.failures for name, one in found["x"].items() if one.failures} == {
        "huey": ["no bulk enqueue"],
        "celery": ["fell over"],
        "rq": ["not installed: no wheel"],
    }


def test_a_very_slow_drain_is_cut_short(tmp_path: Path) -> None:
    (tmp_path / "1.count").write_text("5 1 1")
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            workers = Workers([process], tmp_path, tmp_path / "log")
            assert workers.wait_for(5, within=0.1).count == 5
            with pytest.raises(Failed, match="only 5 of 6 jobs in 0 s"):
                workers.wait_for(6, within=0.1)
        finally:
            process.kill()


def test_every_peer_has_an_adapter_and_is_on_the_page() -> None:
    text = PAGE.read_text()
    wanted = (
        "pgqueuer procrastinate oban chancy dbos celery rq dramatiq huey arq taskiq saq flexiq awa-pg"
        " bullmq graphile-worker pg-boss"
    )
    assert {peer.name for peer in PEERS} >= set(wanted.split())
    for one in (WINCH, *PEERS):
        assert (ADAPTERS / one.adapter).is_file()
    assert report.with_part(text, "settings", report.settings_part()) == text, "run make bench"


# --- what is written --------------------------------------------------------------------------------


def test_a_run_leaves_json_a_plot_and_a_page(tmp_path: Path) -> None:
    measured = results(
        {
            ("pg drain", "winch"): {"rate": 50_000.0, "worker_us": 9.0},
            ("pg drain", "graphile-worker"): {"rate": 40_000.0},
        }
    )
    measured["pg drain"]["oban"] = Series(failures=["not installed: needs Python 3.12"])
    run = report.Run(
        "2026-01-02",
        True,
        about("PostgreSQL 15.1", pgqueuer="1"),
        table.rows(measured),
        measured,
        {"oban": "needs 3.12"},
    )
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    path = report.write(run, tmp_path / "results", page)
    written = json.loads(path.read_text())
    assert path.name == "2026-01-02.json"
    assert [one["metric"] for one in written["rows"]] == [one.metric for one in run.rows]
    assert all(one.keys() >= KEYS for one in written["rows"])
    assert written["absent"] == {"oban": "needs 3.12"}
    assert written["scenarios"]["pg drain"]["oban"]["failures"]
    once = page.read_text()
    assert "| PG drain, graphile-worker | 50.0k jobs/s | graphile-worker | 40.0k | 1.25x |" in once
    assert "- oban: needs 3.12" in once
    report.write(run, tmp_path / "results", page)
    assert page.read_text() == once
    later = results({("pg bulk", "winch"): {"rate": 9.0}})
    both, absent = report.with_earlier("2026-01-02", True, later, {}, tmp_path / "results")
    assert both["pg drain"]["winch"].median("rate") == 50_000
    assert both["pg bulk"]["winch"].median("rate") == 9
    assert absent == {"oban": "needs 3.12"}
    about_both = report.about_all(
        "2026-01-02", True, about("SQLite 3.40", huey="2"), tmp_path / "results"
    )
    assert about_both == about("PostgreSQL 15.1, SQLite 3.40", pgqueuer="1", huey="2")
    assert report.with_earlier("2026-01-03", True, later, {}, tmp_path / "results") == (later, {})
    assert report.with_earlier("2026-01-02", False, later, {}, tmp_path / "results") == (later, {})
    # S314 guards against hostile XML; this was just drawn here.
    drawn = ET.fromstring(plot(measured))  # noqa: S314
    assert [one.get("class") for one in drawn.iter("{http://www.w3.org/2000/svg}rect")] == [
        "bar winch",
        "bar",
    ]


def test_recorded_results_have_the_shape_that_is_promised() -> None:
    for path in (ROOT / "bench/results").glob("*.json"):
        written = json.loads(path.read_text())
        assert written["rows"], path.name
        for one in written["rows"]:
            assert one.keys() >= KEYS
            assert one["ok"] in (True, False, None)
        assert path.with_suffix(".svg").is_file()


# --- one measurement --------------------------------------------------------------------------------


def test_a_short_drain_and_enqueue_from_end_to_end() -> None:
    contender = Contender(WINCH, "sqlite")
    with Stores() as stores:
        bench = Bench(stores, {"winch": environment(WINCH)}, Lengths(enqueue=0.05))
        found = drain_once(bench, contender, Drain(), 200)
        stored = enqueue_rate(bench, contender, "bulk")
        folder = stores.folder
    assert found["rate"] > 0
    assert found["seconds"] > 0
    assert stored["rate"] > 0
    assert not folder.exists()
    assert RAW.name not in {peer.name for peer in PEERS}


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "bench",
        "--only",
        "sqlite drain",
        "--seconds",
        "30",
        "--peer",
        "none",
    ]
    run = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True
    )
    root = psutil.Process(run.pid)

    def has_begun() -> bool:
        return any("winch_peer.py" in " ".join(child.cmdline()) for child in root.children())

    assert wait_until(has_begun, 30)
    children = root.children(recursive=True)
    run.send_signal(signal.SIGINT)
    _, output = run.communicate(timeout=30)
    assert run.returncode == 130, output
    assert "are gone" in output
    assert wait_until(lambda: all(is_gone(child) for child in children), 10)
    assert list(tmp_path.iterdir()) == []
