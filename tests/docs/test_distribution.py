"""The distribution: its name in every text, its metadata, and what the source archive holds."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import winch
from scripts.release.dist import GOLDEN, NOT_IN_ARCHIVE, golden, tracked

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# `pip install winch` and `winch[redis]` name a distribution of another project.
WRONG_NAME = re.compile(
    r"""(?:pip|pipx|uv|uvx|poetry|pdm)[ ](?:pip[ ])?(?:install|add|tool[ ]install)
        (?:[ ]-\S+)*[ ]['"]?winch(?!-jobs)\b | (?<![\w.-])winch\[[a-z]""",
    re.VERBOSE,
)
TEXTS = {
    "", ".html", ".json", ".md", ".py", ".service", ".sh", ".sql", ".toml", ".txt", ".yaml", ".yml",
}  # fmt: skip


def files() -> list[str]:
    found = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if found.returncode == 0:
        return [name for name in found.stdout.decode().split("\0") if (ROOT / name).is_file()]
    return [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "line, is_wrong",
    [
        ("pip install winch", True),
        ("pip install 'winch[web]'", True),
        ("pip install -U winch", True),
        ("uv add winch", True),
        ("needs `winch[redis]`", True),
        ("pip install winch-jobs", False),
        ("pip install 'winch-jobs[web]'", False),
        ("import winch", False),
        ("$ winch worker", False),
        ("tool.winch[0]", False),
    ],
)
def test_the_search_knows_the_wrong_name(line: str, is_wrong: bool) -> None:
    assert bool(WRONG_NAME.search(line)) is is_wrong


def test_every_text_names_our_distribution() -> None:
    wrong = []
    for name in files():
        path = ROOT / name
        if path.suffix not in TEXTS or path == Path(__file__) or ".venv" in path.parts:
            continue
        text = path.read_bytes().decode(errors="replace")
        wrong += [f"{name}: {found[0]}" for found in WRONG_NAME.finditer(text)]
    assert wrong == []


def test_the_metadata_is_complete() -> None:
    assert PROJECT["name"] == "winch-jobs"
    assert PROJECT["readme"] == "README.md"
    assert PROJECT["scripts"] == {"winch": "winch.cli:main"}
    assert set(PROJECT["urls"]) >= {"Homepage", "Changelog"}
    for minor in (11, 12, 13, 14):
        assert f"Programming Language :: Python :: 3.{minor}" in PROJECT["classifiers"]
    for extra in PROJECT["optional-dependencies"]["all"]:
        assert extra.startswith("winch-jobs[")


def test_the_version_has_one_source() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", winch.__version__)
    assert PROJECT["dynamic"] == ["version"]
    done = subprocess.run(
        [sys.executable, "-m", "winch", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"winch {winch.__version__}\n"


def test_the_source_archive_holds_the_repository() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    included = set(build["targets"]["sdist"]["include"])
    folders = {f"/{Path(name).parts[0]}" for name in files() if not name.startswith(".")}
    assert folders - included <= {"/pyproject.toml"}, "hatchling adds pyproject.toml itself"


def test_the_list_of_folders_is_that_of_the_repository() -> None:
    """`make dist` compares the built archives with this list; a new folder is noticed before that."""
    repository = tracked()
    if repository is None:
        pytest.skip("an unpacked source archive has no list of its files")
    package = {name.removeprefix("src/") for name in repository if name.startswith("src/winch/")}
    metadata = {"winch_jobs-0.dist-info/METADATA", "winch_jobs-0.dist-info/licenses/LICENSE"}
    archive = {name for name in repository if not name.startswith(NOT_IN_ARCHIVE)}
    assert golden(package | metadata, archive) == GOLDEN.read_text(), (
        "run python -m scripts.release.dist --update-golden"
    )
