"""Print the public surface of Winch: every name, its signature, and the entry points.

    python scripts/public_surface.py > after.txt
    python scripts/public_surface.py --compare before.txt after.txt

Two checkouts are compared by printing both, each with its own environment. Where a class is defined does
not count, only what callers see. The comparison lists what a caller may miss: names and parameters that
are gone, and parameters that must be given now. Additions are counted. It exits 1 where anything is
missed.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

MODULES = ("winch", "winch.types", "winch.errors", "winch.web", "winch.testing")
# What the app is made of: their own members are no part of the surface.
INSIDE = ("client", "driver", "runtime")
# Gone on purpose since the tree was restructured, with what a caller uses instead. No release had them.
REPLACED = {
    "winch.Collected.said": "winch.Collected.outcome",
    "winch.types.QueueSettings.is_for_producers": "nothing: a claim reads the settings of its queue",
}
# Where an annotation's class lives, and the address of a default value.
HIDDEN = re.compile(r"\bwinch(?:\.[a-z_]+)+\.|<function ([\w.<>]+) at 0x\w+>")


def signature(value: Any) -> str:
    if not callable(value):
        return ""
    try:
        text = str(inspect.signature(value))
    except (NameError, TypeError, ValueError):  # a builtin, or names that only a type checker sees
        return struct_signature(value)
    return HIDDEN.sub(lambda found: found[1] or "", text)


def struct_signature(value: Any) -> str:
    """The fields of a msgspec Struct; the last ones have defaults, except where the default says not."""
    fields = getattr(value, "__struct_fields__", ())
    defaults = getattr(value, "__struct_defaults__", ())
    parts = list(fields)
    for number, default in enumerate(defaults, start=len(fields) - len(defaults)):
        if default is not msgspec.NODEFAULT:
            parts[number] += "=..."
    return f"({', '.join(parts)})"


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
            if name not in INSIDE and type(getattr(app, name)).__module__.startswith("winch"):
                yield from members(f"app.{name}", getattr(app, name))
    app.close()
    for entry in sorted(metadata.distribution("winch-jobs").entry_points, key=str):
        yield f"entry point {entry.group}: {entry.name}"


def read(text: str) -> dict[str, str]:
    """Names with their signatures. A name without one is an attribute."""
    found = {}
    for line in text.splitlines():
        name, bracket, rest = line.partition("(")
        found[name] = bracket + rest
    return found


def parameters(signature: str) -> dict[str, tuple[bool, bool]]:
    """By name: whether it may be given by position, and whether it may be left out."""
    found: dict[str, tuple[bool, bool]] = {}
    depth, start, parts = 0, 1, []
    for place, char in enumerate(signature):
        depth += (char in "([{<") - (char in ")]}" or (char == ">" and signature[place - 1] != "-"))
        if (char == "," and depth == 1) or (char == ")" and depth == 0):
            parts.append(signature[start:place].strip())
            start = place + 1
        if depth == 0:
            break
    is_positional = True
    for part in parts:
        if part in ("", "/"):
            continue
        if part.startswith("*"):
            is_positional = False
        else:
            name = re.split("[:=]", part, maxsplit=1)[0].strip()
            found[name] = (is_positional, "=" in part)
    return found


def missed(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    for name, signature in before.items():
        if name not in after:
            if name not in REPLACED:
                yield f"gone: {name}"
            continue
        old, new = parameters(signature), parameters(after[name])
        takes_any = "**" in after[name]
        for one in old.keys() - new.keys():
            if not takes_any:
                yield f"gone: parameter {one} of {name}"
        for one in new.keys() - old.keys():
            if not new[one][1]:
                yield f"must be given: parameter {one} of {name}"
        for one in old.keys() & new.keys():
            if old[one][0] and not new[one][0]:
                yield f"by name only: parameter {one} of {name}"
            if old[one][1] and not new[one][1]:
                yield f"must be given: parameter {one} of {name}"


def compare(before: dict[str, str], after: dict[str, str]) -> int:
    found = sorted(missed(before, after))
    for name in before.keys() & REPLACED.keys() - after.keys():
        print(f"replaced: {name} by {REPLACED[name]}")
    print("\n".join(found))
    print(f"{len(before)} names before, {len(after)} after; {len(after.keys() - before.keys())} added, "
          f"{len(found)} missed")  # fmt: skip
    return 1 if found else 0


def main(argv: list[str]) -> int:
    if argv[:1] == ["--compare"]:
        before, after = (read(Path(name).read_text()) for name in argv[1:3])
        return compare(before, after)
    print("\n".join(surface()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
