"""`winch.testing` holds what users import; the reliability lab stays outside the package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import winch.testing

FOLDER = Path(winch.testing.__file__).parent
OUTSIDE = {"lab", "bench", "tests", "scripts", "examples"}


def test_exports() -> None:
    assert winch.testing.__all__ == [
        "FlakyStorage",
        "World",
        "assert_enqueued",
        "assert_not_enqueued",
        "inline",
        "virtual",
    ]


def test_the_other_public_modules_are_the_plugin_and_the_conformance_suite() -> None:
    names = {path.name.removesuffix(".py") for path in FOLDER.iterdir() if not path.name.startswith("_")}
    assert names == {"conformance", "flaky", "plugin"}


def imports(source: str) -> Iterator[str]:
    """The top-level packages that a module imports, wherever in the module the import is."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def test_nothing_outside_the_package_is_imported() -> None:
    for path in FOLDER.rglob("*.py"):
        assert not OUTSIDE & set(imports(path.read_text())), path.relative_to(FOLDER)
