"""Walk everything and print a table, then the shortest trace of each broken design in words."""

from __future__ import annotations

import sys

from tests.model.broken import BROKEN
from tests.model.broken_http import BROKEN_HTTP
from tests.model.broken_rules import BROKEN_RULES
from tests.model.designs import HOLDS
from tests.model.explore import render


def main() -> int:
    write = sys.stdout.write
    write(f"{'design':<60} {'scope':<14} {'states':>7} {'steps':>8} {'time':>7}  verdict\n")
    surprises = 0
    total = 0.0
    traces = []
    for case in (*HOLDS, *BROKEN, *BROKEN_HTTP, *BROKEN_RULES):
        report = case.walk()
        total += report.seconds
        verdict = "holds"
        if report.breach is not None:
            verdict = f"breaks {report.breach.number} in {len(report.trace) - 1} steps"
            traces.append(f"{case.title}\n{render(report)}\n")
        if report.breach is not case.breaks:
            verdict += " (a surprise)"
            surprises += 1
        write(
            f"{case.design:<60} {case.scope:<14} {report.states:>7} {report.steps:>8}"
            f" {report.seconds:>5.1f} s  {verdict}\n"
        )
        sys.stdout.flush()
    write(f"{total:.1f} s in all\n\n" + "\n".join(traces))
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
