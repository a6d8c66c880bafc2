"""Parts that run in pieces lose no test and run none twice."""

from __future__ import annotations

from scripts.test_parts import PARTS, PIECES, TESTS, pieces_of, planned


def test_the_pieces_of_a_part_cover_each_of_its_files_once() -> None:
    [part] = [part for part, pieces in PIECES.items() if isinstance(pieces, int)]
    runs = pieces_of(part, PIECES[part])
    files = [file for run in runs for file in run.files]
    assert len(runs) == PIECES[part]
    assert sorted(files) == sorted(
        f"tests/{part}/{path.name}" for path in (TESTS / part).glob("test_*.py")
    )
    assert len({str(run) for run in runs}) == len(runs)


def test_chosen_tests_run_in_whole_parts() -> None:
    runs = [run for group in planned(PARTS, ["-k", "retry"]) for run in group]
    assert sorted(run.part for run in runs) == sorted(PARTS)
    assert not any(run.chosen or run.files for run in runs)
