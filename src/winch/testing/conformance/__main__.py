"""Run the conformance suite for one store.

    python -m winch.testing.conformance --url postgresql://localhost/test

Nothing in the store is touched: SQLite gets files of its own beside the one named, PostgreSQL a schema
of its own, and both are removed at the end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from winch.core.errors import WinchError
from winch.testing.conformance.case import Case
from winch.testing.conformance.suite import Report, all_cases, run
from winch.testing.conformance.target import target_for


def selected(text: str | None) -> list[Case]:
    """The cases whose family.name holds this text; all when there is none."""
    return [case for case in all_cases() if text is None or text in f"{case.family}.{case.name}"]


def show(reports: Sequence[Report]) -> bool:
    """Print one line for each driver, then what is absent, then what failed; True when all is well."""
    write = sys.stdout.write
    for report in reports:
        write(report.line() + "\n")
    for report in reports:
        for capability, count in sorted(report.absent.items()):
            write(f"absent from {report.name} and refused clearly: {capability} ({count})\n")
    for report in reports:
        for result in report.failed:
            write(f"\nFAILED {report.name}: {result.case} [{result.mode}]\n{result.error}")
    sys.stdout.flush()
    return all(report.results and not report.failed for report in reports)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m winch.testing.conformance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", required=True, help="the store: memory://, sqlite:///…, postgresql://…")
    parser.add_argument("-k", metavar="TEXT", help="only cases whose family.name holds this text")
    options = parser.parse_args(argv)
    try:
        return 0 if show([run(target_for(options.url), selected(options.k))]) else 1
    except WinchError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
