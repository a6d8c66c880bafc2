"""Arguments as a framework has them: `{"args": […], "kwargs": {…}}`, positional where they were
positional. The function that runs takes `(ctx, /, *args, **kwargs)`; unique keys and limits name the
arguments of the project's function behind it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from winch.core.errors import ConfigError
from winch.core.values import codec
from winch.engine.tasks.arguments import Arguments, refuse_unknown


class PlainArguments(Arguments):
    """The arguments of a function with another signature, `own`, as plain JSON data."""

    def __init__(
        self, task: str, fn: Callable[..., Any], max_bytes: int, own: inspect.Signature
    ) -> None:
        super().__init__(task, fn, max_bytes)
        self._own = own

    def pack_named(self, given: Mapping[str, Any]) -> str:
        """A schedule has the call as it is stored: `{"args": […], "kwargs": {…}}`."""
        for name in given:
            if name not in ("args", "kwargs"):
                raise ConfigError(f"task {self._task} takes args and kwargs here, got {name!r}")
        return self.pack(given.get("args", ()), given.get("kwargs", {}))

    def check_names(self, names: Sequence[str]) -> None:
        refuse_unknown(self._task, self._own.parameters, names)

    def values(self, text: str, names: Sequence[str] = ()) -> dict[str, Any]:
        """The arguments by name, as unique keys and limits need them."""
        given = codec.loads(text, dict[str, Any], what="arguments")
        bound = self._own.bind_partial(*given.get("args", ()), **given.get("kwargs", {}))
        bound.apply_defaults()
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if self._own.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                found |= value
            else:
                found[name] = list(value) if isinstance(value, tuple) else value
        return {name: found.get(name) for name in names} if names else found
