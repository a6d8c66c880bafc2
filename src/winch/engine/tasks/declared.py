"""Tasks without code here: a worker in another process or language runs them.

What is known of one is its name, the schema of its arguments, and its options. A call that does not fit
the schema is refused.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from winch.core.errors import ConfigError
from winch.core.values import codec
from winch.core.values.codec import MAX_ARGS_BYTES
from winch.core.values.json_schema import Schema, check_schema, refuse_misfit
from winch.engine.tasks.arguments import Arguments
from winch.engine.tasks.task import Task

P = inspect.Parameter


class DeclaredTask(Task[..., Any]):
    """A task that is declared without code. It can be enqueued and not called; no worker of this app
    claims its jobs."""

    has_code: ClassVar[bool] = False
    arguments: Arguments

    def take_schema(self, schema: Schema) -> None:
        """Check calls by this schema as well as by the parameters that `stub_of` made of it."""
        self.arguments = DeclaredArguments(self.name, self.fn, schema)


class DeclaredArguments(Arguments):
    """The arguments of such a task: those that the schema names."""

    def __init__(self, task: str, stub: Callable[..., Any], schema: Schema) -> None:
        super().__init__(task, stub, MAX_ARGS_BYTES)
        self._schema = schema

    def pack(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        text = super().pack(args, kwargs)
        self._refuse_misfit(text)
        return text

    def completed(self, text: str, value: Any) -> str:
        whole = super().completed(text, value)
        self._refuse_misfit(whole)
        return whole

    def check(self, text: str) -> None:
        super().check(text)
        self._refuse_misfit(text)

    def _refuse_misfit(self, text: str) -> None:
        values = codec.loads(text, what="arguments")
        refuse_misfit(self._schema, values, f"{self._task}: args")


def check_contract(name: str, schema: object) -> dict[str, Any]:
    """The schema of a task's arguments as it is kept; raises ConfigError where it is none."""
    check_schema(schema, f"schema of {name}")
    assert isinstance(schema, Mapping)  # noqa: S101  # checked
    if schema.get("type", "object") != "object":
        raise ConfigError(f"schema of {name}: arguments have names, so its type must be object")
    return dict(schema)


def stub_of(name: str, schema: Schema) -> Callable[..., Any]:
    """A function with the arguments of the schema as its parameters, required ones first."""

    def missing(*_: Any, **__: Any) -> None:
        raise ConfigError(f"task {name!r} is declared without code: enqueue it; another worker runs it")

    properties, required = schema.get("properties", {}), schema.get("required", ())
    for one in properties:
        if not one.isidentifier() or keyword.iskeyword(one):
            raise ConfigError(f"schema of {name}: {one!r} cannot be the name of an argument")
    if unknown := [one for one in required if one not in properties]:
        raise ConfigError(f"schema of {name}: {unknown[0]!r} is required and is no property")
    ordered = sorted(properties, key=lambda one: one not in required)
    setattr(  # noqa: B010  # what inspect reads
        missing,
        "__signature__",
        inspect.Signature(
            [
                P(one, P.POSITIONAL_OR_KEYWORD, default=P.empty if one in required else None)
                for one in ordered
            ]
        ),
    )
    missing.__name__ = missing.__qualname__ = name
    missing.__doc__ = schema.get("description")
    return missing
