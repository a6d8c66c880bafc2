"""What a run leaves: a table on the screen, a JSON file, a plot, and a part of docs/benchmarks.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.catalog import PEERS, WINCH
from bench.picture import draw
from bench.plot import plot
from bench.scenario import Results, Series
from bench.table import CLOSING, Row

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Run:
    """Everything that the report contains about one run."""

    date: str
    is_quick: bool
    about: Mapping[str, Any]  # machine, versions, lengths
    rows: Sequence[Row]
    results: Results
    absent: Mapping[str, str]


def as_json(run: Run) -> dict[str, Any]:
    return {
        "date": run.date,
        "is_quick": run.is_quick,
        "about": run.about,
        "rows": [row.as_json() for row in run.rows],
        "absent": dict(run.absent),
        "scenarios": {
            scenario: {
                name: {
                    "median": {key: _short(series.median(key)) for key in series.keys()},  # noqa: SIM118
                    "rounds": [{k: _short(v) for k, v in values.items()} for values in series.rounds],
                    "failures": series.failures,
                }
                for name, series in found.items()
            }
            for scenario, found in run.results.items()
        },
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def write(run: Run, folder: Path = RESULTS, page: Path = PAGE) -> Path:
    """Write the JSON file, the plot beside it and the results on the page; returns the JSON's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run.date}.json"
    path.write_text(json.dumps(as_json(run), indent=1, ensure_ascii=False) + "\n")
    drawn = path.with_suffix(".svg")
    drawn.write_text(plot(run.results))
    text = page.read_text()
    text = with_part(text, "settings", settings_part())
    text = with_part(text, "results", results_part(run))
    page.write_text(text)
    draw(page.parent / "images", folder)
    return path


def with_earlier(
    date: str, is_quick: bool, results: Results, absent: Mapping[str, str], folder: Path = RESULTS
) -> tuple[Results, dict[str, str]]:
    """These results, and what other runs of the same kind measured on the same day.

    A bench can so be run in pieces. A scenario is never put together from two runs: everybody in it was
    measured in turn, in one.
    """
    path = folder / f"{date}.json"
    if not path.exists():
        return results, dict(absent)
    written = json.loads(path.read_text())
    if written["is_quick"] != is_quick:
        return results, dict(absent)
    earlier = {
        scenario: {name: Series(one["rounds"], one["failures"]) for name, one in found.items()}
        for scenario, found in written["scenarios"].items()
    }
    return {**earlier, **results}, {**written["absent"], **absent}


def about_all(
    date: str, is_quick: bool, about: Mapping[str, Any], folder: Path = RESULTS
) -> dict[str, Any]:
    """The notes on this run, with the stores and versions of the day's other pieces."""
    path = folder / f"{date}.json"
    earlier: Any = json.loads(path.read_text()) if path.exists() else {"is_quick": None}
    if earlier["is_quick"] != is_quick:
        return dict(about)
    before = earlier["about"]
    stores = {*before["stores"].split(", "), *about["stores"].split(", ")}
    merged = {key: {**before[key], **about[key]} for key in ("versions", "settings")}
    return {**about, **merged, "stores": ", ".join(sorted(stores))}


def with_part(text: str, name: str, part: str) -> str:
    """The page with one of its written parts replaced."""
    begin, end = f"<!-- {name}: written by make bench -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"the page has no part named {name!r}")
    return f"{before}{begin}\n{part}{end}{after}"


def settings_part() -> str:
    lines = [["system", "settings"], *([one.name, one.settings] for one in (WINCH, *PEERS))]
    return "\n".join(_markdown(lines)) + "\n"


# --- text -------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    if value is None:
        return "–"
    if abs(value) >= 10_000:
        return f"{value / 1000:,.1f}k"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def verdict(row: Row) -> str:
    if row.ok is None:
        return "–"
    if not row.ok:
        return "no"
    return "yes" if not row.is_aim_met else "yes, and the aim"


def asked(row: Row, value: float | None, is_aim: bool = False) -> str:
    if value is None:
        return "–"
    if row.how.startswith("ratio") and not (is_aim and row.aim_of_winch):
        return f"{value:g}x" if row.how.endswith("least") else f"≤ {value:g}x"
    return f"{'≥' if row.how == 'at least' else '≤'} {value:g}"


def cells(row: Row) -> list[str]:
    ratio = "–" if row.ratio is None else f"{row.ratio:.2f}x"
    return [
        row.metric,
        f"{number(row.winch)} {row.unit}" if row.winch is not None else "–",
        row.peer or "–",
        number(row.peer_value),
        ratio,
        asked(row, row.must),
        asked(row, row.aim, is_aim=True),
        verdict(row),
    ]


HEAD = ["", "Winch", "beside", "its figure", "ratio", "must", "aim", "reached"]


def taken_part(rows: Sequence[Row]) -> list[Row]:
    """The rows of what this run measured or tried to measure."""
    return [row for row in rows if not (row.reason or "").endswith("not part of this run")]


def table_text(rows: Sequence[Row]) -> str:
    """The table for the screen."""
    table = [HEAD, *map(cells, rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(HEAD))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table
    ]
    return "\n".join(line.rstrip() for line in text)


def results_part(run: Run) -> str:
    """The results part of docs/benchmarks.md."""
    kind = "QUICK=1" if run.is_quick else "whole"
    parts = [
        f"Run of {run.date} ({kind}).",
        "",
        _about(run),
        "",
        *(
            f"![Jobs run per second by store](images/benchmarks-{theme}.svg#gh-{theme}-mode-only)"
            for theme in ("light", "dark")
        ),
        "",
    ]
    rows = taken_part(run.rows)
    parts += _markdown([HEAD, *map(cells, rows)])
    reasons = [f"- {row.metric}: {row.reason}" for row in rows if row.reason]
    if reasons:
        parts += ["", "Not measured in this run:", "", *reasons]
    if run.absent:
        parts += ["", "Could not be installed:", ""]
        parts += [f"- {name}: {reason}" for name, reason in run.absent.items()]
    parts += ["", "### How far the aims are", "", *_distances(run.rows)]
    parts += ["", "### The cost of a job in a drain", "", *_costs(run.results)]
    parts += ["", "### Every figure", "", *_figures(run.results)]
    return "\n".join(parts) + "\n"


def _about(run: Run) -> str:
    return "; ".join(
        f"{key}: {value}" for key, value in run.about.items() if not isinstance(value, Mapping)
    )


def _markdown(table: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = table
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(line)} |" for line in rest),
    ]


def _distances(rows: Sequence[Row]) -> list[str]:
    """What is measured and short of its aim: by how much, and what would close it."""
    short = [row for row in rows if row.to_aim is not None and row.to_aim > 1]
    explained: set[str] = set()
    lines = [["", "short of the aim by", "what would close it"]]
    for row in short:
        words = "as above" if row.line in explained else CLOSING[row.line]
        explained.add(row.line)
        lines.append([row.metric, f"{row.to_aim:.2f}x", words])
    return _markdown(lines) if short else ["Every figure that was measured has reached its aim."]


def _costs(results: Results) -> list[str]:
    """CPU and WAL per job beside the raw limit and the other systems."""
    keys = ("worker_us", "server_us", "wal_bytes")
    lines = [["store", "system", "jobs/s", *(KEYS[key] for key in keys)]]
    for store in ("pg", "redis", "sqlite"):
        found = {**results.get(f"{store} drain", {}), **results.get(f"{store} raw limit", {})}
        lines += [
            [store, name, number(series.median("rate")), *(number(series.median(key)) for key in keys)]
            for name, series in found.items()
            if series.rounds
        ]
    return _markdown(lines)


KEYS = {
    "rate": "jobs/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "worker_us": "worker CPU µs/job",
    "server_us": "server CPU µs/job",
    "wal_bytes": "WAL bytes/job",
    "memory_mib": "worker MiB",
    "stored_rate": "stored/s",
    "whole_rate": "stored and run/s",
    "busiest_us": "busiest primary CPU µs/job",
    "nodes_us": "all primaries CPU µs/job",
    "most": "most at once",
    "overtaken": "out of order",
}


def _figures(results: Results) -> list[str]:
    found: list[str] = []
    for scenario, by_name in results.items():
        keys = list(dict.fromkeys(key for series in by_name.values() for key in series.keys()))  # noqa: SIM118
        keys = [key for key in keys if key != "seconds"]
        lines = [["", *(KEYS.get(key, key) for key in keys), "spread"]]
        for name, series in by_name.items():
            spread = series.spread(keys[0]) if keys else None
            medians = [number(series.median(key)) for key in keys]
            last = series.failures[0] if series.failures else "" if spread is None else f"{spread:.2f}x"
            lines.append([name, *medians, last.replace("|", "/")])
        found += [f"**{scenario}**", "", *_markdown(lines), ""]
    return found
