"""Phrases that no page, help text, message or public docstring may use: they do not name the actor."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import lab.report
import winch
import winch.testing
from tests.docs.test_names import WORKSHOP, workshop

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/winch"
TEMPLATES = sorted((PACKAGE / "web/templates").glob("*.html"))
# Generated from recorded runs, whose violations keep the words of their time.
RECORDED = {"reliability.md"}
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    if page.name not in RECORDED
)
MODULES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if "conformance" not in path.parts  # names of cases and of jobs in them
)

VAGUE = re.compile(
    r"\bwho waits?\b|\bwhoever\b|\bsomebody\b|\bsomeone\b|\bnobody\b|\banybody\b|\bunseen\b"
    r"|\bha(?:s|ve) the say\b|\bgets? on\b|\bsuch a one\b|\bhow-manieth\b|\bguilty\b"
    r"|\b(?:is|are|was|were|been|be) (?:told|said)\b|\bas it (?:told|said)\b|\bput through\b",
    flags=re.IGNORECASE,
)
# Uses in the ordinary sense.
ALLOWED = re.compile(r"if nobody answers|`[^`]*`")


def vague(text: str) -> list[str]:
    return VAGUE.findall(ALLOWED.sub("", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_name_the_actor(page: Path) -> None:
    assert vague(page.read_text()) == []


def test_the_opening_of_the_recorded_page_too() -> None:
    assert vague(lab.report.HEAD) == []
    assert vague(" ".join(lab.report.INVARIANTS.values())) == []


def test_help_texts_name_the_actor() -> None:
    texts = sorted((ROOT / "tests/golden/help").glob("*.txt"))
    assert len(texts) > 60
    assert {text.name: vague(text.read_text()) for text in texts if vague(text.read_text())} == {}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_name_the_actor(template: Path) -> None:
    assert vague(template.read_text()) == []


def test_messages_name_the_actor() -> None:
    found = {}
    for path in MODULES:
        for line, text in messages(ast.parse(path.read_text())):
            if vague(text):
                found[f"{path.relative_to(PACKAGE).as_posix()}:{line}"] = text
    assert found == {}


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """String literals of more than one word that are no docstrings."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in docstrings:
            continue
        if isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


@pytest.mark.parametrize("package", [winch, winch.testing], ids=lambda package: package.__name__)
def test_public_docstrings_name_the_actor(package: object) -> None:
    found = {}
    for name in package.__all__:  # type: ignore[attr-defined]
        public = getattr(package, name)
        for place, doc in documented(name, public):
            if vague(doc):
                found[place] = vague(doc)
    assert found == {}


def documented(name: str, public: object) -> Iterator[tuple[str, str]]:
    yield name, inspect.getdoc(public) or ""
    if inspect.isclass(public) and public.__module__.startswith("winch"):
        for member, value in vars(public).items():
            if not member.startswith("_"):
                target = value.fget if isinstance(value, property) else value
                yield f"{name}.{member}", inspect.getdoc(target) or ""


# The narrower list for what only developers read.
ACTORLESS = re.compile(
    r"\bwhoever\b|\bsomebody\b|\bnobody\b|\banybody\b|\bunseen\b|\bhas the say\b|\bsuch a one\b",
    flags=re.IGNORECASE,
)
# In tests and tools, also the passive of speech: a test names the message, the reply or the event.
WORKSHOP_ACTORLESS = re.compile(
    rf"{ACTORLESS.pattern}|\b(?:is|are|was|were|been|be) (?:told|said)\b", flags=re.IGNORECASE
)


def test_comments_and_docstrings_name_the_actor() -> None:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, text in prose(path.read_text()):
            if ACTORLESS.search(text):
                found[f"{path.relative_to(PACKAGE).as_posix()}:{line}"] = text
    for path in sorted([*PACKAGE.rglob("*.lua"), *PACKAGE.rglob("*.sql")]):
        if "migrations" in path.parts:  # applied as they are
            continue
        for line, text in enumerate(path.read_text().splitlines(), start=1):
            if ACTORLESS.search(text.partition("--")[2]):
                found[f"{path.relative_to(PACKAGE).as_posix()}:{line}"] = text
    assert found == {}


@pytest.mark.parametrize("folder", WORKSHOP)
def test_tests_and_tools_name_the_actor(folder: str) -> None:
    found = [
        (path, line, text)
        for path, source in workshop()
        if path.startswith(f"{folder}/")
        for line, text in prose(source)
        if WORKSHOP_ACTORLESS.search(text)
    ]
    assert not found


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Comments, and strings in triple quotes."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_text = token.type == tokenize.STRING and token.string.lstrip("rfb").startswith('"""')
        if token.type == tokenize.COMMENT or is_text:
            yield token.start[0], token.string


def test_every_invariant_has_its_line() -> None:
    used = set()
    for path in (ROOT / "lab").rglob("*.py"):
        used.update(re.findall(r'Violation\(\s*"(I\d+b?|alive|order)"', path.read_text()))
    assert used == set(lab.report.INVARIANTS)


@pytest.mark.parametrize("text", ["when nobody looks", "it is told", "who waits at it", "whoever asks"])
def test_the_pattern_finds_them(text: str) -> None:
    assert vague(text)
