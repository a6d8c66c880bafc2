"""Every Python and console block of README and docs runs, or a comment above it gives the reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Imported once here; the pages run in forks of this process.
import winch.cli
import winch.testing
import winch.web  # noqa: F401
from tests.docs.blocks import Block, blocks, run_page
from tests.servers import Databases

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
KINDS = {"console", "go", "ini", "js", "json", "python", "setup", "sql", "text", "toml"}
STORE = "<!-- store: postgres -->"


def runs(block: Block) -> bool:
    return block.reason is None and block.kind in ("python", "console")


LOCAL = [page for page in PAGES if any(map(runs, blocks(page))) and STORE not in page.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_has_a_language(page: Path) -> None:
    for block in blocks(page):
        assert block.kind in KINDS, f"{page.name}, line {block.line}: ```{block.kind}"


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WINCH_") and not name.startswith("WINCH_TEST_"):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("page", LOCAL, ids=lambda page: page.name)
def test_a_page_runs_as_pasted(page: Path, tmp_path: Path) -> None:
    wrong = run_page(page, tmp_path, {})
    assert wrong is None, wrong


@pytest.mark.servers
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if STORE in page.read_text()], ids=lambda page: page.name
)
def test_a_page_with_a_server_runs_as_pasted(
    page: Path, postgres_server: Databases, tmp_path: Path
) -> None:
    url = postgres_server.new_store()
    wrong = run_page(page, tmp_path, {"DSN": url})
    assert wrong is None, wrong


def test_the_runner_reports_wrong_blocks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for text, is_wrong in (
        ("```python\nassert 1 == 2\n```\n", True),
        ("<!-- not run: it is wrong -->\n```python\nassert 1 == 2\n```\n", False),
        ("```console\n$ winch --version\nwinch …\n```\n", False),
        ("```console\n$ winch --version\nwinch 99\n```\n", True),
        ("```console\n$ winch jobs list --nonsense\n```\n", True),
        ("```console\n$ rm -rf build\n```\n", True),
    ):
        page.write_text(text)
        assert bool(run_page(page, tmp_path, {})) is is_wrong, text
