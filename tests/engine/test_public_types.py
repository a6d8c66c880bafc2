"""What the public API takes and returns has a public name, and our own examples use only those."""

from __future__ import annotations

import ast
import importlib
import inspect
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import winch
import winch.errors
import winch.types
import winch.web
from winch.core import errors
from winch.engine.base.log import log
from winch.engine.tasks.context import AttemptLog

ROOT = Path(__file__).parents[2]
PUBLIC = {*winch.__all__, *winch.types.__all__, *winch.errors.__all__}
# Where the walk begins: what `winch` exports, and the areas of an app.
AREAS = (
    "jobs",
    "dead",
    "queues",
    "schedules",
    "workers",
    "limits",
    "flows",
    "outbox",
    "webhooks",
    "idempotency",
    "audit",
)
# Reachable through attributes of App and Task that are not part of the API, and used by Winch alone.
INTERNAL = {
    "Arguments",
    "Client",
    "CollectingDecorator",
    "Driver",
    "EnqueueOptions",
    "Loaded",
    "Operation",
    "Registry",
    "Runtime",
    "Settings",
    "Spool",
    "Surroundings",
    "TaskDecorator",
    "TaskOptions",
}

# Classes that callers construct; records and handles are given to them.
MADE = set(winch.__all__) - {"Context", "Job", "Task"}


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module)))


@cache
def names_of(module: str) -> dict[str, tuple[str, str]]:
    """What each name of a module stands for: (module, name), also where only type checkers import it."""
    found: dict[str, tuple[str, str]] = {}
    tree = tree_of(module)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("winch"):
            for alias in node.names:
                found[alias.asname or alias.name] = (node.module, alias.name)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = (module, node.name)
    return found


def class_named(module: str, name: str) -> type | None:
    value = getattr(importlib.import_module(module), name, None)
    return value if inspect.isclass(value) else None


def mentioned(cls: Any) -> set[type]:
    """The classes of Winch in the signature of a function, or in the signatures and fields of a class,
    that its callers see."""
    home = winch._HOMES[cls.__name__] if cls.__module__ == "winch" else cls.__module__
    tree = tree_of(home)
    nodes = (ast.ClassDef, ast.FunctionDef)
    [node] = [one for one in tree.body if isinstance(one, nodes) and one.name == cls.__name__]
    notes: list[ast.expr] = []
    for one in node.body if isinstance(node, ast.ClassDef) else [node]:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            if one.name.startswith("_") and one.name not in ("__init__", "__enter__", "__call__"):
                continue
            if one.name == "__init__" and cls.__name__ not in MADE:
                continue
            args = [arg for arg in ast.walk(one.args) if isinstance(arg, ast.arg)]
            notes += [arg.annotation for arg in args if arg.annotation is not None]
            notes += [one.returns] if one.returns is not None else []
        elif isinstance(one, ast.AnnAssign) and not ast.unparse(one.target).startswith("_"):
            notes.append(one.annotation)
    known = names_of(home)
    words = {part.id for note in notes for part in ast.walk(note) if isinstance(part, ast.Name)}
    found = {class_named(*known[word]) for word in words if word in known}
    return {one for one in found if one is not None and not one.__name__.startswith("_")}


def reached() -> set[Any]:
    """Every class that the public API names, and what those name in turn."""
    app = winch.App("memory://")
    exported = (getattr(winch, name) for name in winch.__all__)
    left: list[Any] = [one for one in exported if inspect.isclass(one) or inspect.isfunction(one)]
    left += [type(getattr(app, area)) for area in AREAS]
    seen: set[Any] = set()
    while left:
        one = left.pop()
        if one not in seen and getattr(one, "__module__", "").startswith("winch"):
            seen.add(one)
            left += [other for other in mentioned(one) if other.__name__ not in INTERNAL]
    app.close()
    return seen


def test_every_class_that_the_api_names_can_be_imported() -> None:
    areas = {type(getattr(winch.App("memory://"), area)) for area in AREAS}
    missing = {cls.__name__ for cls in reached() - areas if cls.__name__ not in PUBLIC}
    assert not missing, f"not in winch.types: {', '.join(sorted(missing))}"


@pytest.mark.parametrize("module", [winch, winch.types, winch.errors, winch.web])
def test_every_public_name_is_there(module: ModuleType) -> None:
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert list(module.__all__) == sorted(module.__all__, key=_order)


def _order(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_winch_errors_has_the_whole_tree_and_the_top_level_too() -> None:
    tree = {
        name for name, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == "winch"
    }
    assert set(winch.errors.__all__) == tree
    assert tree <= set(winch.__all__)


def test_the_lazy_table_and_the_list_of_names_agree() -> None:
    assert set(winch._HOMES) == set(winch.__all__)


PUBLIC_MODULES = (
    "winch",
    "winch.types",
    "winch.errors",
    "winch.testing",
    "winch.web",
    "winch.integrations",
)


def imports(path: Path) -> list[str]:
    """The modules of Winch that a file imports from."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "winch":
            found.append(node.module or "")
        elif isinstance(node, ast.Import):
            found += [one.name for one in node.names if one.name.split(".")[0] == "winch"]
    return found


def is_public(module: str) -> bool:
    return module in PUBLIC_MODULES or module.startswith("winch.integrations.")


FILES = sorted([*(ROOT / "examples").rglob("*.py"), *(ROOT / "src/winch/integrations").rglob("*.py")])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_and_integrations_import_public_names_only(path: Path) -> None:
    private = [module for module in imports(path) if not is_public(module)]
    assert not private, f"{path.name} imports {', '.join(private)}"


def test_the_loggers_that_people_configure_keep_their_names() -> None:
    assert log.name == "winch"
    assert "winch.job" in inspect.getsource(AttemptLog)


# The names of the API on an app.
APP_NAMES = {
    "aclose", "adrain", "aenqueue_many", "aforward_spool", "asignal", "audit", "close", "command",
    "configure", "dead", "declare", "drain", "enqueue_many", "flows", "forward_spool", "idempotency",
    "jobs", "lifespan", "limits", "migrate", "on", "outbox", "preflight", "push", "queues", "run_worker",
    "schedule", "schedules", "signal", "task", "transaction", "use", "webhooks", "worker", "workers",
}  # fmt: skip
# Parts of the engine that the command line, the dashboard and the tests reach through the app. None may
# be added.
APP_PARTS = {
    "client", "clock", "connected", "driver", "import_path", "loaded", "ready", "runtime", "settings",
    "spool", "standing_in", "start_worker", "tasks",
}  # fmt: skip


def test_an_app_shows_the_names_of_the_api_and_a_few_parts() -> None:
    shown = {name for name in dir(winch.App("memory://")) if not name.startswith("_")}
    assert shown == APP_NAMES | APP_PARTS
