"""The scripts of a release: notes from fragments, and the files of others that the package carries."""

from __future__ import annotations

import hashlib
import shutil
import tomllib
from pathlib import Path

import pytest

from scripts.release.notes import fragments, main, section

ROOT = Path(__file__).parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of what the notes are made from, with fragments of its own."""
    (tmp_path / "changes").mkdir()
    (tmp_path / "src/winch/core").mkdir(parents=True)
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    shutil.copy(ROOT / "src/winch/core/version.py", tmp_path / "src/winch/core")
    (tmp_path / "changes/README.md").write_text("how to write one")
    (tmp_path / "changes/0002.fixed.md").write_text("A bug\nis gone.\n")
    (tmp_path / "changes/0001.migration.md").write_text("Run `winch migrate` first.\n")
    return tmp_path


def test_fragments_become_the_notes_of_a_release(repository: Path) -> None:
    before = (repository / "CHANGELOG.md").read_text()
    assert main(["9.8.7"], repository) == 0
    text = (repository / "CHANGELOG.md").read_text()
    assert section(text, "9.8.7") == (
        "### Before you upgrade\n- Run `winch migrate` first.\n\n### Fixed\n- A bug\n  is gone."
    )
    assert section(text, "0.1.0") == section(before, "0.1.0")
    assert text.index("## 9.8.7") < text.index("## 0.1.0")
    assert [path.name for path in (repository / "changes").iterdir()] == ["README.md"]
    assert '__version__ = "9.8.7"' in (repository / "src/winch/core/version.py").read_text()


def test_a_version_is_released_once(repository: Path) -> None:
    with pytest.raises(SystemExit, match="already"):
        main(["0.1.0"], repository)
    assert len(fragments(repository / "changes")) == 2


def test_a_misnamed_fragment_is_an_error(repository: Path) -> None:
    (repository / "changes/0003.improved.md").write_text("Better.")
    with pytest.raises(SystemExit, match=r"0003\.improved\.md is no fragment"):
        fragments(repository / "changes")


def test_the_fragments_of_the_repository_can_be_read() -> None:
    fragments(ROOT / "changes")


def test_vendored_files_are_unchanged_and_their_licences_listed() -> None:
    listed = tomllib.loads((ROOT / "scripts/release/vendored.toml").read_text())
    licences = (ROOT / "src/winch/web/static/licences.txt").read_text()
    notice = (ROOT / "NOTICE").read_text()
    for name, one in listed.items():
        assert hashlib.sha256((ROOT / name).read_bytes()).hexdigest() == one["sha256"], name
        title = f"{one['title']} {one['version']}"
        assert title in licences
        assert title in notice
        assert one["licence"] in notice
