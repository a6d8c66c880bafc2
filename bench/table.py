"""Every row of the table: the lines of docs/benchmarks.md, judged by what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench import asked, asked_gated, asked_http
from bench.scenario import Results
from bench.specs import NeverBehind, Row, Spec

SPECS: Sequence[Spec] = (*asked.SPECS, *asked_gated.SPECS, *asked_http.SPECS)
CLOSING: Mapping[str, str] = {**asked.CLOSING, **asked_gated.CLOSING, **asked_http.CLOSING}


def rows(results: Results) -> list[Row]:
    """Every row of the table, measured or not."""
    return [spec.row(results) for spec in SPECS]


def lines() -> list[str]:
    """The lines of the table, in order."""
    return list(dict.fromkeys(spec.line for spec in SPECS))


__all__ = ["CLOSING", "SPECS", "NeverBehind", "Row", "lines", "rows"]
