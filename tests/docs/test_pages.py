"""The documentation is complete: lists match the code, links lead somewhere, nothing is left undone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import winch
import winch.testing
from tests.docs.blocks import blocks
from winch.core.lifecycle import JobState
from winch.engine.base.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
            if page.is_relative_to(ROOT / "docs"):  # the site holds nothing else
                inside = (page.parent / target).resolve().is_relative_to(ROOT / "docs")
                assert inside, f"{page.name} links out of docs/: {target}"


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs/configuration.md").read_text()
    for name in Settings.__struct_fields__:
        assert f"| `{name}` | `WINCH_{name.upper()}` |" in text


def test_every_state_is_in_the_glossary() -> None:
    text = (ROOT / "docs/glossary.md").read_text()
    for state in JobState:
        assert state in text


def test_the_lifecycle_page_is_the_table() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts/lifecycle_page.py", "--check"], check=False)
    assert done.returncode == 0, "run scripts/lifecycle_page.py"


@pytest.mark.parametrize("script", ["reference_pages", "diagrams"])
def test_generated_pages_are_those_of_the_code(script: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / f"scripts/{script}.py", "--check"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# What a page must not promise for later: it describes this release.
UNFINISHED = re.compile(
    r"not yet supported|coming soon|in this release|not implemented|not written yet|work in progress"
    r"|\bTODO\b|\bFIXME\b|\bTBD\b",
    flags=re.IGNORECASE,
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_speaks_of_unfinished_work(page: Path) -> None:
    assert UNFINISHED.findall(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_fit_the_column_of_the_site(page: Path) -> None:
    """A longer line is cut at the edge and has to be scrolled."""
    wide = [
        f"{page.name}:{block.line}: {line}"
        for block in blocks(page)
        if block.kind == "python"
        for line in block.text.splitlines()
        if len(line) > 90
    ]
    assert wide == []


def test_the_readme_keeps_to_its_plan() -> None:
    text = (ROOT / "README.md").read_text()
    assert 80 <= len(text.splitlines()) <= 110
    assert len(re.findall(r"^- \*\*(Start|Use|Operate|Understand):\*\*", text, flags=re.MULTILINE)) == 4
    assert len(re.findall(r"^[1-5]\. \*\*", text, flags=re.MULTILINE)) == 5
    for page in (ROOT / "README.md", ROOT / "docs/index.md"):
        assert "pip install winch-jobs" in page.read_text()
        assert "The package named `winch` on the index is another project" in page.read_text()


@pytest.mark.parametrize("package", [winch, winch.testing], ids=lambda package: package.__name__)
def test_public_names_are_sorted_and_real(package: Any) -> None:
    # Constants first, as the linter wants it.
    in_order = sorted(package.__all__, key=lambda name: (not name.isupper(), name))
    assert package.__all__ == in_order
    assert sorted(package._HOMES) == sorted(package.__all__)
    for name in package.__all__:
        assert getattr(package, name).__doc__, f"{name} has no docstring"
