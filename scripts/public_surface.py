"""Print the public surface of Winch: every name, its signature, and the entry points.

    python scripts/public_surface.py > after.txt        then: diff before.txt after.txt

Two checkouts are compared by printing both, each with its own environment. Where a class is defined does
not count, only what callers see.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

MODULES = ("winch", "winch.types", "winch.errors", "winch.web", "winch.testing")
# Where an annotation's class lives, and the address of a default value.
HIDDEN = re.compile(r"\bwinch(?:\.[a-z_]+)+\.|<function ([\w.<>]+) at 0x\w+>")


def signature(value: Any) -> str:
    if not callable(value):
        return ""
    try:
        text = str(inspect.signature(value))
    except (NameError, TypeError, ValueError):  # a builtin, or names that only a type checker sees
        return f"({', '.join(getattr(value, '__struct_fields__', ()))})"
    return HIDDEN.sub(lambda found: found[1] or "", text)


def members(prefix: str, value: Any) -> Iterator[str]:
    for name in sorted(dir(value)):
        if not name.startswith("_"):
            yield f"{prefix}.{name}{signature(getattr(value, name, None))}"


def surface() -> Iterator[str]:
    for path in MODULES:
        module = importlib.import_module(path)
        for name in sorted(module.__all__):
            value = getattr(module, name)
            yield f"{path}.{name}{signature(value)}"
            if inspect.isclass(value):
                yield from members(f"{path}.{name}", value)
    import winch

    app = winch.App("memory://")
    for name in sorted(dir(app)):
        if not name.startswith("_"):
            yield f"app.{name}"
            if type(getattr(app, name)).__module__.startswith("winch"):
                yield from members(f"app.{name}", getattr(app, name))
    app.close()
    for entry in sorted(metadata.distribution("winch-jobs").entry_points, key=str):
        yield f"entry point {entry.group}: {entry.name}"


if __name__ == "__main__":
    print("\n".join(surface()))
