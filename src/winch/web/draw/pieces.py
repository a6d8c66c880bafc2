"""What the macros in `templates/parts.html` take: figures, findings, health."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """A key figure: its name, the value with its unit, and one note. `look` is `bad` or `warn`."""

    name: str
    value: str
    unit: str = ""
    note: str = ""
    look: str = ""
    href: str = ""
    id: str = ""


@dataclass(frozen=True)
class HealthFinding:
    """One thing that is wrong: what, why, and the remedy with its address. A higher weight is worse."""

    what: str
    why: str
    remedy: str
    href: str
    weight: int
    icon: str = "warning"
    look: str = "warning"


@dataclass(frozen=True)
class Health:
    """A verdict, and the worst findings; `more` have no place."""

    verdict: str
    note: str
    look: str
    findings: Sequence[HealthFinding] = ()
    more: int = 0
    more_href: str = ""
