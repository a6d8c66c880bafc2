"""A failure is believed unless the test passes twice by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.test_parts import (
    MOST_AGAIN,
    NO_TESTS,
    TESTS_FAILED,
    Result,
    Run,
    read_failures,
    run_failures_again,
    run_part,
)

# Fails in the runs that `fails` names, counted from 0 over processes.
COUNTED = """
from pathlib import Path

def test_it():
    runs = Path({runs!r})
    count = len(runs.read_text()) if runs.exists() else 0
    runs.write_text("x" * (count + 1))
    assert count not in {fails}
"""


def result(failures: tuple[str, ...], exit_code: int = TESTS_FAILED) -> Result:
    return Result("engine", exit_code, 1.0, 1.0, 8, len(failures), 0, False, failures)


def counted(folder: Path, fails: set[int]) -> str:
    file = folder / "test_counted.py"
    file.write_text(COUNTED.format(runs=str(folder / "runs"), fails=fails))
    return f"{file}::test_it"


def test_a_test_that_passes_twice_alone_is_unsteady(tmp_path: Path) -> None:
    name = counted(tmp_path, set())
    [again] = run_failures_again([result((name,))])
    assert again.is_ok
    assert (again.passed, again.failed, again.unsteady) == (9, 0, (name,))
    assert again.remark == "ok, 1 unsteady"
    assert len((tmp_path / "runs").read_text()) == 2


@pytest.mark.parametrize("fails", [{0}, {1}], ids=["at once", "the second time"])
def test_a_test_that_fails_again_has_failed(tmp_path: Path, fails: set[int]) -> None:
    before = result((counted(tmp_path, fails),))
    assert run_failures_again([before]) == [before]


def test_many_failures_are_not_run_again(tmp_path: Path) -> None:
    name = counted(tmp_path, set())
    before = [result((name,) * (MOST_AGAIN - 1)), result((name,) * 2)]
    assert run_failures_again(before) == before
    assert not (tmp_path / "runs").exists()


def test_only_failed_tests_are_run_again(tmp_path: Path) -> None:
    name = counted(tmp_path, set())
    for before in (result((str(tmp_path),)), result((name,), exit_code=NO_TESTS)):
        assert run_failures_again([before]) == [before]
    assert not (tmp_path / "runs").exists()


def test_the_names_of_failures_are_read(tmp_path: Path) -> None:
    assert read_failures(tmp_path) == ()
    name = counted(tmp_path, {0})
    ran = run_part(Run("harness"), ["-k", "no_test_has_this_name", name, "--no-header"])
    assert (ran.exit_code, ran.failures) == (NO_TESTS, ())
    ran = run_part(Run("harness"), ["-k", "test_counted", name, "--no-header"])
    assert (ran.exit_code, ran.failed) == (TESTS_FAILED, 1)
    [failure] = ran.failures
    assert failure.endswith("::test_it")
