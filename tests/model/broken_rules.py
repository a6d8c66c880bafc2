"""Broken ways to set a rule of a queue in every part of a cluster."""

from __future__ import annotations

from functools import partial

from tests.model.designs import Case
from tests.model.explore import Rule, explore
from tests.model.rule_parts import PartsDesign, PartsModel
from tests.model.scopes import RULE_PARTS


def _breaks(name: str, design: PartsDesign) -> Case:
    model = PartsModel(design, RULE_PARTS)
    return Case(name, RULE_PARTS.name, Rule.SETTLES, partial(explore, model, (Rule.SETTLES,)))


BROKEN_RULES = (
    _breaks("home does not note a rule before it is set", PartsDesign(notes=False)),
    _breaks("a part takes an older rule from a driver that is late", PartsDesign(compares=False)),
    _breaks("the end of a rule removes the note of a later one", PartsDesign(ends_its_own=False)),
)
