"""A case: one sentence about drivers, and the function that finds out whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.storage.capabilities import Capabilities
from winch.testing.conformance.bench import Bench

Body = Callable[[Bench], None] | Callable[[Bench], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Case:
    """`needs` names a capability; `events` asks for a store that keeps `events="full"`."""

    family: str
    name: str
    body: Body
    needs: str | None = None
    events: bool = False

    @property
    def sentence(self) -> str:
        return self.name.replace("_", " ")

    def __str__(self) -> str:
        return f"{self.family}: {self.sentence}"


def case(*, needs: str | None = None, events: bool = False) -> Callable[[Body], Case]:
    """Turn a function, named as a sentence, into a case of its module's family: the module's FAMILY, or
    its name."""
    known = Capabilities.__struct_fields__
    if needs is not None and needs not in known:
        raise ConfigError(f"no capability named {needs!r}{did_you_mean(needs, known)}")

    def made(body: Body) -> Case:
        family = body.__globals__.get("FAMILY") or body.__module__.rpartition(".")[2]
        return Case(family, body.__name__, body, needs, events)

    return made


def has(capabilities: Capabilities, needs: str | None) -> bool:
    return needs is None or bool(msgspec.structs.asdict(capabilities)[needs])
