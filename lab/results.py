"""What a run found, as data: printed, kept as JSON, and turned into docs/reliability.md."""

from __future__ import annotations

from pathlib import Path

import msgspec

RESULTS = Path(__file__).with_name("results")
_ROOT = f"{Path(__file__).resolve().parents[1]}/"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what was done, what was seen, and the shortest evidence of each broken promise."""

    store: str
    fault: str
    title: str
    seed: int
    is_ok: bool
    observed: str
    seconds: float
    counters: dict[str, int] = {}
    measures: dict[str, float] = {}
    violations: tuple[str, ...] = ()
    waived: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        word = "ok  " if self.is_ok else "FAIL"
        measured = ", ".join(f"{name} {value:g}" for name, value in self.measures.items())
        found = f"{self.observed}; {measured}" if measured else self.observed
        return (
            f"{word} {self.fault:<8} {self.store:<14} seed {self.seed:<7} {self.seconds:5.1f} s  {found}"
        )


def keep(results: list[Result], file: Path) -> None:
    """Write results beside those of the same store and fault from earlier runs, newest last. Without the
    logs of runs that broke off, and without the place of this copy of the project."""
    results = [
        msgspec.structs.replace(result, violations=tuple(map(_short, result.violations)))
        for result in results
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    # Added in one write: a process killed here leaves the earlier results intact.
    with file.open("ab") as out:
        out.write(b"".join(msgspec.json.encode(result) + b"\n" for result in results))


def _short(words: str) -> str:
    return words.partition("\n--- ")[0].replace(_ROOT, "")


def load(file: Path) -> list[Result]:
    if not file.exists():
        return []
    lines = file.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Result) for line in lines if line]
