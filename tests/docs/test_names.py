"""One class name means one thing, and a variable is named for what it holds."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import winch

PACKAGE = Path(winch.__file__).parent
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STORES = {"memory", "postgres", "redis", "sqlite"}
FAMILIES = {"storage/families.py", "storage/kv_records.py", "storage/parcels.py"}

# The class of the HTTP API has the name of the public record on purpose: it is its form in JSON, and its
# name stands in the OpenAPI document.
SAME_THING = {"Enqueued"}

# Django names permissions and pages after the class of a model, so the model of a job is called Job.
GIVEN_BY_DJANGO = {"Job"}

# Words that only this project uses in this sense: the glossary explains each.
HOUSE_WORDS = (
    "area", "bell", "beat", "board", "book", "family", "fast path", "gate", "hand-over", "home shard",
    "lease", "low water", "offer", "permit", "pulse", "ring", "sending", "spool", "tally", "twin",
    "verb",
)  # fmt: skip

# Modules of former names. A page that names one sends its reader to a file that is not there.
FORMER_MODULES = (
    "accepting", "bodies", "carry", "death", "door", "entropy", "exposition", "express", "faults",
    "flow_look", "gathering", "isolation", "job_desk", "joining", "lane", "lending", "link", "lookout",
    "places", "planning", "queue_desk", "recording", "shelf", "spreading", "telling", "unwinding",
    "vitals", "watching", "wires",
)  # fmt: skip


# Where developers work beside the package.
WORKSHOP = ("bench", "examples", "lab", "scripts", "tests")


@cache
def workshop() -> list[tuple[str, str]]:
    paths = sorted(path for folder in WORKSHOP for path in (ROOT / folder).rglob("*.py"))
    return [(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths]


@cache
def modules() -> list[tuple[str, ast.Module]]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return [(path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())) for path in paths]


def test_one_class_name_means_one_thing() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(path)
    twice = {name for name, paths in places.items() if len(roles(paths)) > 1} - SAME_THING
    assert twice == GIVEN_BY_DJANGO, {name: places[name] for name in sorted(twice - GIVEN_BY_DJANGO)}


def roles(paths: set[str]) -> set[str]:
    """The places, counted once where they share a role: the drivers may each have a class of one name in
    a module of one name, and the protocol of a family of verbs has the name of its implementations."""
    found = set()
    for path in paths:
        folder, _, rest = path.partition("/")
        store, _, role = rest.partition("/")
        found.add(f"drivers/*/{role}" if folder == "drivers" and store in STORES else path)
    if any(path.startswith("drivers/*/verbs/") for path in found):
        found -= FAMILIES
    return found


# Words that name no thing and no actor, and house words that plain ones have replaced.
VAGUE_PARTS = {
    "said", "told", "telling", "somebody", "nobody", "whoever", "guilty", "door", "desk", "shelf",
    "entropy", "unwinding", "lending", "lookout", "vitals", "exposition",
}  # fmt: skip


def test_names_say_what_they_stand_for() -> None:
    found = [
        (path, name)
        for path, tree in modules()
        if not path.startswith("testing/conformance/")  # its cases are named by whole sentences
        for name in bound(tree)
        if VAGUE_PARTS & set(name.lower().split("_"))
    ]
    assert not found


def test_variables_of_tests_and_tools_are_named_for_what_they_hold() -> None:
    trees = [(path, ast.parse(text)) for path, text in workshop()]
    found = [(path, name) for path, tree in trees for name in bound(tree) if name in ("said", "told")]
    assert not found


def test_tests_are_named_for_what_they_check() -> None:
    """A name has an actor and a verb, so that the line of a failed test is a sentence to act on."""
    words = {"who", "whom", "whoever", "nobody", "somebody", "anybody", "told", "said", "says", "tells"}
    found = [
        (path, name)
        for path, text in workshop()
        for name in re.findall(r"def (test_\w+)", text)
        if words & set(name.split("_"))
    ]
    assert not found


def bound(tree: ast.Module) -> Iterator[str]:
    """What a module gives a name to; a class in words, as `queue_desk` for QueueDesk."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.ClassDef):
            yield re.sub(r"(?<!^)(?=[A-Z])", "_", node.name)
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_the_glossary_explains_every_house_word() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (DOCS / "glossary.md").read_text(), flags=re.MULTILINE)
    explained = {word for row in rows for word in row.split(", ")}
    assert set(HOUSE_WORDS) <= explained, set(HOUSE_WORDS) - explained


def test_pages_name_no_module_by_a_former_name() -> None:
    names = "|".join(FORMER_MODULES)
    for page in DOCS.rglob("*.md"):
        found = re.findall(rf"(?:engine|drivers|web|cli)/(?:\w+/)*(?:{names})\.py", page.read_text())
        assert not found, f"{page.name} names {found}"
