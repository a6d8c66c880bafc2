"""Run the tests part by part and print how long each part took.

A part is a folder under tests/. A folder that does not exist yet is passed over; once it exists it
must hold tests, because a part that silently collects nothing looks exactly like one that passes.

    python scripts/test_parts.py                  every part, without the slow tests
    python scripts/test_parts.py --slow           every part, every test; PLAIN again without fast paths
    python scripts/test_parts.py core engine      these parts
    python scripts/test_parts.py core -- -x -k retry    what follows -- goes to pytest

A test that fails beside others is run twice more by itself. If it passes both times the run is ok, and
the summary names the test as unsteady: it judges seconds on a busy machine, or it found a rare race.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import secrets
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"

# Cheapest first: a mistake in the pure core should not wait for servers and processes to start. Then the
# longest, so that the lanes end together.
PARTS = (
    "core",
    "engine",
    "storage",
    "web",
    "docs",
    "cli",
    "harness",
    "clients",
    "matrix",
    "frameworks",
    "django",
    "bare",
    "model",
    "testing",
    "faults",
)

# Three parts at a time on two cores: most of them wait for servers, leases and processes half of the
# time. The first is over in seconds and shows at once what is broken. The last measures how long things
# take, so nothing runs meanwhile but its own other piece; three pieces at once made each other late.
# They leave half of the cores idle. The parts of BESIDE only compute, start no server and judge no
# seconds: they run meanwhile, with what the others leave.
LANES = 3
ALONE = ("core", "faults")
BESIDE = {"faults": ("model", "testing")}
# The longest part is cut in two: every other file. The rest by words in the names of tests.
PIECES: Mapping[str, tuple[str, ...] | int] = {
    "engine": 2,
    "storage": ("postgres", "not postgres"),
    "faults": ("sqlite or loops or redis", "not (sqlite or loops or redis)"),
}

# Run again by --slow with WINCH_FAST=off: each fast path must equal the plain one that it stands for.
PLAIN = (("storage", "test_conformance"), ("faults", ""))

NO_TESTS = 5
TESTS_FAILED = 1

# Ten thousand tests of real servers, processes and time share two cores. One that fails among them and
# passes twice by itself met a busy machine; a defect fails again. More failures than these are believed.
MOST_AGAIN = 3


@dataclass(frozen=True)
class Result:
    part: str
    exit_code: int
    seconds: float
    cpu: float  # of pytest and of every process that it waited for
    passed: int
    failed: int
    skipped: int
    is_interrupted: bool
    failures: tuple[str, ...] = ()  # the ids of the tests that failed
    unsteady: tuple[str, ...] = ()  # of those that then passed twice by themselves
    is_plain: bool = False

    @property
    def is_ok(self) -> bool:
        return self.exit_code == 0

    @property
    def remark(self) -> str:
        if self.is_ok:
            return f"ok, {len(self.unsteady)} unsteady" if self.unsteady else "ok"
        if self.exit_code == NO_TESTS:
            return "FAILED: the folder exists but no test ran"
        return f"FAILED: pytest exited with {self.exit_code}"


@dataclass(frozen=True)
class Run:
    """A part; the piece of one whose tests' names match `chosen`, or that is the one of `files`."""

    part: str
    chosen: str = ""
    files: tuple[str, ...] = ()
    piece: str = ""
    is_plain: bool = False  # without fast paths
    is_quiet: bool = False  # with the time of the cores that others leave

    def __str__(self) -> str:
        words = [word for word in (self.chosen, self.piece, "plain" * self.is_plain) if word]
        return f"{self.part} ({', '.join(words)})" if words else self.part


def run_part(run: Run, pytest_args: Sequence[str], output: IO[bytes] | None = None) -> Result:
    """Run one part with pytest's output passed straight through, or into a file."""
    with tempfile.TemporaryDirectory(prefix="winch-tests-") as folder:
        report = Path(folder) / "report.xml"
        paths = run.files or (f"tests/{run.part}",)
        command = [sys.executable, "-m", "pytest", *paths, f"--junit-xml={report}"]
        command += ["-o", f"cache_dir={folder}/cache"]  # several run at a time, each notes what failed
        if run.chosen:
            command += ["-k", run.chosen]
        if run.is_quiet:
            command = ["nice", "-n", "19", *command]
        started = time.monotonic()
        exit_code, cpu, is_interrupted = run_to_its_end(
            [*command, *pytest_args], environment_of(run.is_plain), output
        )
        seconds = time.monotonic() - started
        passed, failed, skipped = read_counts(report)
        failures = read_failures(Path(folder) / "cache")
    if exit_code != 0:
        # Pytest can fail without a failed test: a broken conftest, no tests, a crash of its own.
        failed = max(failed, 1)
    return Result(
        str(run),
        exit_code,
        seconds,
        cpu,
        passed,
        failed,
        skipped,
        is_interrupted,
        failures,
        is_plain=run.is_plain,
    )


def environment_of(is_plain: bool) -> dict[str, str]:
    return os.environ | {"WINCH_FAST": "off"} if is_plain else dict(os.environ)


def run_failures_again(results: Sequence[Result], times: int = 2) -> list[Result]:
    """Run the few tests that failed by themselves; the results, with what passed `times` in a row."""
    failures = sum(len(result.failures) for result in results)
    if not 0 < failures <= MOST_AGAIN:
        return list(results)
    return [run_part_again(result, times) if result.failures else result for result in results]


def run_part_again(result: Result, times: int) -> Result:
    # A file that cannot be imported has an id without "::"; a crash of pytest has another exit code.
    if result.exit_code != TESTS_FAILED or not all("::" in name for name in result.failures):
        return result
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *result.failures]
    for _ in range(times):
        print(f"\n--- {result.part}: {len(result.failures)} again, alone ---", flush=True)
        exit_code, _, is_interrupted = run_to_its_end(command, environment_of(result.is_plain), None)
        if exit_code != 0:
            return replace(result, is_interrupted=is_interrupted)
    count = len(result.failures)
    return replace(
        result,
        exit_code=0,
        passed=result.passed + count,
        failed=result.failed - count,
        unsteady=result.failures,
    )


def run_to_its_end(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None
) -> tuple[int, float, bool]:
    """Run a command; return its exit code, its CPU seconds and whether Ctrl-C was pressed meanwhile."""
    is_interrupted = False
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output) as pytest:
        while True:
            try:
                _, status, used = os.wait4(pytest.pid, 0)
                pytest.returncode = os.waitstatus_to_exitcode(status)
                return pytest.returncode, used.ru_utime + used.ru_stime, is_interrupted
            except KeyboardInterrupt:
                # Pytest got it too; it still has servers to stop and a summary to print.
                is_interrupted = True


def run_lanes(runs: Sequence[Run], pytest_args: Sequence[str]) -> list[Result]:
    """Run these parts LANES at a time; each one's output comes in one piece when it has ended."""
    if len(runs) < 2:
        return [run_alone(run, pytest_args) for run in runs]
    printing = threading.Lock()

    def run_one(run: Run) -> Result:
        with tempfile.TemporaryFile() as kept:
            result = run_part(run, pytest_args, kept)
            kept.seek(0)
            with printing:
                print(f"\n--- {run} ---", flush=True)
                sys.stdout.write(kept.read().decode(errors="replace"))
                sys.stdout.flush()
        return result

    print(f"\n--- {', '.join(map(str, runs))}: {LANES} at a time ---", flush=True)
    is_interrupted = False
    with ThreadPoolExecutor(LANES) as lanes:
        waiting = [lanes.submit(run_one, run) for run in runs]
        try:
            wait(waiting)
        except KeyboardInterrupt:
            # Every pytest got it too. Those that run stop their servers; the others do not begin.
            is_interrupted = True
            lanes.shutdown(cancel_futures=True)
    results = [future.result() for future in waiting if not future.cancelled()]
    return [replace(result, is_interrupted=is_interrupted) for result in results]


def pieces_of(part: str, pieces: tuple[str, ...] | int) -> list[Run]:
    """A part in pieces: by words in the names of its tests, or file by file into so many."""
    if not isinstance(pieces, int):
        return [Run(part, piece) for piece in pieces]
    files = sorted(str(path.relative_to(ROOT)) for path in (TESTS / part).rglob("test_*.py"))
    return [
        Run(part, files=tuple(files[first::pieces]), piece=f"{first + 1} of {pieces}")
        for first in range(pieces)
    ]


def planned(parts: Sequence[str], pytest_args: Sequence[str]) -> Iterator[list[Run]]:
    """What runs side by side, one list after the other. With chosen tests a part is not split."""
    pieces = {} if "-k" in pytest_args else PIECES

    def room(part: str) -> str | None:
        return part if part in ALONE else None

    beside = {quiet for part in parts for quiet in BESIDE.get(part, ()) if quiet in parts}
    for _, group in groupby((part for part in parts if part not in beside), key=room):
        runs = []
        for part in group:
            runs += pieces_of(part, pieces.get(part, ("",)))
            runs += [Run(quiet, is_quiet=True) for quiet in BESIDE.get(part, ()) if quiet in beside]
        yield runs


def planned_plain(parts: Sequence[str], pytest_args: Sequence[str]) -> Iterator[list[Run]]:
    """What runs again without fast paths, one list after the other."""
    is_chosen = "-k" in pytest_args
    for part, chosen in PLAIN:
        if part in parts:
            pieces = (chosen,) if chosen or is_chosen else PIECES.get(part, ("",))
            runs = [Run(part)] if is_chosen else pieces_of(part, pieces)
            yield [replace(run, is_plain=True) for run in runs]


def run_alone(run: Run, pytest_args: Sequence[str]) -> Result:
    print(f"\n--- {run} ---", flush=True)
    return run_part(run, pytest_args)


def read_counts(report: Path) -> tuple[int, int, int]:
    """Read (passed, failed, skipped) from pytest's report; all zero when it did not write one."""
    if not report.exists():
        return 0, 0, 0
    passed = failed = skipped = 0
    # S314 guards against hostile XML; this file was just written by our own pytest.
    for suite in ET.parse(report).getroot().iter("testsuite"):  # noqa: S314
        total, failures, errors, skips = (
            int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
        )
        passed += total - failures - errors - skips
        failed += failures + errors
        skipped += skips
    return passed, failed, skipped


def read_failures(cache: Path) -> tuple[str, ...]:
    """Read the ids of the tests that failed from pytest's cache."""
    kept = cache / "v/cache/lastfailed"
    return tuple(json.loads(kept.read_text())) if kept.exists() else ()


def stray_tests() -> list[Path]:
    """Find test files that belong to no part and so would never run."""
    files = (path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
    return sorted(path for path in files if path.parts[0] not in PARTS)


def summarize(results: Sequence[Result], absent: Sequence[str], seconds: float) -> None:
    print("\nPart                 wall time   CPU time   passed  failed  skipped")
    for result in results:
        print(
            f"{result.part:<19} {result.seconds:>8.1f} s {result.cpu:>8.1f} s {result.passed:>8}"
            f" {result.failed:>7} {result.skipped:>8}  {result.remark}"
        )
    if absent:
        print(f"not written yet: {', '.join(absent)}")
    for result in results:
        for name in result.unsteady:
            print(f"unsteady: {name} failed beside other tests and passed twice alone")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    print(f"{'all parts':<19} {seconds:>8.1f} s, {cpu:.0f} s of the cores")
    passed = sum(result.passed for result in results)
    failed = sum(result.failed for result in results)
    print(f"{passed} passed, {failed} failed", flush=True)


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    # Cut at -- by hand: argparse would hand pytest's options to the list of parts.
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"any of: {', '.join(PARTS)}")
    parser.add_argument("--slow", action="store_true", help="include tests marked slow")
    options = parser.parse_args(argv[:cut])
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"no part named {part!r}; expected any of: {', '.join(PARTS)}")
    return options, list(argv[cut + 1 :])


def main(argv: Sequence[str]) -> int:
    options, pytest_args = parse(argv)
    # The tests start more than a thousand processes: each would compile the package, half a second.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if options.slow:
        os.environ["WINCH_TEST_ALL"] = "1"  # a program that could be installed must be there
    else:
        pytest_args = ["-m", "not slow", *pytest_args]
    wanted = [part for part in PARTS if part in options.parts] if options.parts else PARTS
    present = [part for part in wanted if (TESTS / part).is_dir()]
    absent = [part for part in wanted if part not in present]

    stray = stray_tests()
    for path in stray:
        print(f"tests/{path} is in no part, so it would never run; move it or add it to PARTS")

    started = time.monotonic()
    results: list[Result] = []
    plan = [*planned(present, pytest_args)]
    if options.slow:
        plan += planned_plain(present, pytest_args)
    with tempfile.TemporaryDirectory(prefix="winch-kept-") as kept:
        # What a server has made, a server of another part starts with; see tests/servers.py.
        (Path(kept) / "password").write_text(secrets.token_hex(16))
        os.environ["WINCH_TEST_KEPT"] = kept
        for runs in plan:
            results += run_lanes(runs, pytest_args)
            if any(result.is_interrupted for result in results):
                break
        else:
            results = run_failures_again(results)

    summarize(results, absent, time.monotonic() - started)
    return 0 if results and not stray and all(result.is_ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
