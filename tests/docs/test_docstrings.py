"""Every public name has a docstring that users can read: plain words, short sentences, valid code."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

import winch
from winch.engine.tasks.options import EnqueueOptions, TaskOptions

MODULES = ("winch", "winch.types", "winch.errors", "winch.testing", "winch.web")
AREAS = (
    "audit", "dead", "flows", "idempotency", "jobs", "limits", "outbox", "queues", "schedules",
    "workers",
)  # fmt: skip
MOST_WORDS = 25
# Words for people and for speech: a sentence names its actor, and software does not talk.
BANNED = re.compile(
    r"\b(who|whom|whoever|nobody|somebody|someone|told|said|say|says|tell|tells)\b", re.IGNORECASE
)


def public() -> Iterator[tuple[str, Any]]:
    """Each public name that can have a docstring."""
    for path in MODULES:
        module = importlib.import_module(path)
        yield path, module
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                yield from class_and_members(f"{path}.{name}", value)
            elif inspect.isfunction(value):
                yield f"{path}.{name}", value
    app = winch.App("memory://")
    for name in AREAS:
        yield from class_and_members(f"app.{name}", type(getattr(app, name)))


def class_and_members(path: str, cls: type) -> Iterator[tuple[str, Any]]:
    yield path, cls
    for name in dir(cls):
        if name.startswith("_"):
            continue
        owner = next(base for base in cls.__mro__ if name in vars(base))
        value = vars(owner)[name]
        if owner.__module__.split(".")[0] != "winch":
            continue
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        if inspect.isfunction(value) or isinstance(value, property) or hasattr(value, "func"):
            yield f"{path}.{name}", value


PUBLIC = dict(public())


def doc(value: Any) -> str:
    """The docstring of the object itself: not one that it inherits, nor one that a decorator made."""
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return "" if text is None else inspect.cleandoc(text)


def blocks(text: str) -> tuple[str, list[str]]:
    """The prose, and the indented blocks of code."""
    prose: list[str] = []
    code: list[str] = []
    for part in re.split(r"\n\n(?=\S)|\n\n(?=    \S)", text):
        if part.startswith("    "):
            if code and prose and prose[-1] == "":
                code[-1] += "\n\n" + part
            else:
                code.append(part)
                prose.append("")
        else:
            prose.append(part)
    return "\n\n".join(prose), [textwrap.dedent(one) for one in code]


def sentences(prose: str) -> list[str]:
    plain = re.sub(r"`[^`]*`", "code", prose)
    parts = re.split(r"(?<=[.:;!?])\s+|\n\n|\n- ", plain)
    return [" ".join(part.split()) for part in parts if part.strip()]


def test_the_surface_is_found() -> None:
    assert len(PUBLIC) > 450
    assert {"winch.App.task", "winch.Context.step", "winch.types.Batch.enqueue", "app.jobs.list"} <= set(
        PUBLIC
    )


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring(name: str) -> None:
    text = doc(PUBLIC[name])
    assert len(text.split()) >= 2, f"{name} has no docstring"
    # The signature that dataclasses write where a class has no docstring.
    assert not text.startswith(f"{name.rpartition('.')[2]}("), f"{name} has only its signature"
    prose, code = blocks(text)
    assert prose.strip().rstrip("`\"')").endswith((".", ":", "…")), (
        f"{name}: its last sentence does not end"
    )
    assert BANNED.findall(prose) == [], name
    long = [one for one in sentences(prose) if len(one.split()) > MOST_WORDS]
    assert long == [], name
    for block in code:
        ast.parse(block)


def test_the_options_of_tasks_are_explained() -> None:
    explained = doc(winch.App.task)
    assert [name for name in TaskOptions.__struct_fields__ if f"`{name}" not in explained] == []
    explained = doc(winch.Task.using)
    assert [name for name in EnqueueOptions.__struct_fields__ if name not in explained] == []


def test_async_twins_name_their_counterpart() -> None:
    """`alist` is `list` for async code: its docstring names it, so that a reader knows where to look."""
    for name, value in PUBLIC.items():
        owner, _, method = name.rpartition(".")
        if method.startswith("a") and f"{owner}.{method[1:]}" in PUBLIC:
            assert f"`{method[1:]}`" in doc(value), name
