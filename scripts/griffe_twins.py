"""Show the methods of areas as callers see them, in the reference that mkdocstrings makes.

A method marked `@blocking` is written as a generator (`-> Operation[Job]`), and its `@twin` has no
parameters of its own. Callers see `-> Job`, and a twin with the same parameters that they await.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_OPERATION = re.compile(r"^Operation\[(.*)\]$", flags=re.DOTALL)


class Twins(griffe.Extension):  # type: ignore[misc]  # griffe comes with the extra docs
    """Unwrap `Operation[…]` and give each twin the parameters of its original."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        originals: dict[str, griffe.Function] = {}
        for member in list(cls.members.values()):
            if not isinstance(member, griffe.Function):
                continue
            marks = [str(mark.value) for mark in member.decorators]
            if "blocking" in marks:
                found = _OPERATION.match(str(member.returns))
                if found:
                    member.returns = found[1]
                originals[member.name] = member
            for mark in marks:
                if mark.startswith("twin("):
                    original = originals[mark[len("twin(") : -1]]
                    member.parameters = original.parameters
                    member.returns = original.returns
                    member.labels.add("async")
