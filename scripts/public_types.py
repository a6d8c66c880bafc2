"""What pyright finds in Winch: the calls of tests/typing, and the type of every public symbol.

The second part is `pyright --verifytypes winch --ignoreexternal`. It passes when the type of every
symbol that a user can import is known: 100 %. It runs in an empty folder: pyright takes a package
inside its working directory for a project to check and not for an installed package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "VIRTUAL_ENV": str(BIN.parent)}


def verify_types() -> dict[str, Any]:
    """The report of pyright as it prints it in JSON."""
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [BIN / "basedpyright", "--ignoreexternal", "--verifytypes", "winch", "--outputjson"],
            cwd=empty, env=environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"pyright printed no report:\n{done.stdout}{done.stderr}") from None
    if "typeCompleteness" not in report:
        raise SystemExit(f"pyright did not look at winch: {report.get('generalDiagnostics')}")
    return report


def incomplete(report: dict[str, Any]) -> Iterator[str]:
    """One line for each symbol whose type is missing or partly unknown.

    Missing annotations come first: the unknown types mostly follow from them.
    """
    lines = []
    for symbol in report["typeCompleteness"]["symbols"]:
        if symbol["isTypeKnown"]:
            continue
        for found in symbol["diagnostics"]:
            message = found["message"].splitlines()[0]
            if message.startswith(
                "No docstring"
            ):  # tests/docs/test_docstrings.py has the rules for those
                continue
            path = Path(found["file"]) if "file" in found else None
            where = f"{path.relative_to(ROOT)}:" if path and path.is_relative_to(ROOT) else ""
            line = f"{found['range']['start']['line'] + 1}: " if "range" in found else ""
            lines.append(("partially" in message, f"{where}{line}{symbol['name']}: {message}"))
    yield from (line for _, line in sorted(set(lines)))


def is_djangos(symbol: dict[str, Any]) -> bool:
    """Whether all that is unknown about a symbol is a class of Django's, which has no types."""
    of_django = symbol["name"].startswith("winch.integrations.django.")
    return of_django and all(
        message.startswith(("Type of base class", "Type of metaclass", "No docstring"))
        or "partially unknown" in message
        for message in (found["message"] for found in symbol["diagnostics"])
    )


def main() -> int:
    calls = subprocess.run([BIN / "basedpyright"], cwd=ROOT, env=environment(), check=False)
    completeness = (report := verify_types())["typeCompleteness"]
    symbols = completeness["symbols"]
    django = [one for one in symbols if not one["isTypeKnown"] and is_djangos(one)]
    completeness["symbols"] = [one for one in symbols if one not in django]
    for line in incomplete(report):
        print(line)
    counts = completeness["exportedSymbolCounts"]
    exported = [one for one in django if one["isExported"]]
    known, total = counts["withKnownType"], sum(counts.values()) - len(exported)
    print(f"public types: {known} of {total} symbols known, {100 * known / total:.1f} %")
    print(f"{len(exported)} more derive from classes of Django, which has no types")
    is_complete = completeness["pyTypedPath"] is not None and known == total > 0
    return calls.returncode or int(not is_complete)


if __name__ == "__main__":
    sys.exit(main())
