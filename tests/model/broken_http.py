"""Broken ways to work over HTTP."""

from __future__ import annotations

from functools import partial

from tests.model.designs import Case
from tests.model.explore import Rule, explore
from tests.model.http_sessions import HttpDesign, HttpModel
from tests.model.scopes import HTTP_BATCHES


def _breaks(name: str, rule: Rule, design: HttpDesign) -> Case:
    model = HttpModel(design, HTTP_BATCHES)
    return Case(name, HTTP_BATCHES.name, rule, partial(explore, model, (rule,)))


BROKEN_HTTP = (
    _breaks("no heartbeat lists what a lost claim took", Rule.SETTLES, HttpDesign(lists=False)),
    _breaks(
        "a worker gives back what a claim on its way takes", Rule.TAKEN, HttpDesign(on_the_way="none")
    ),
    _breaks(
        "a worker minds the claims from before its heartbeat only",
        Rule.TAKEN,
        HttpDesign(on_the_way="sent"),
    ),
    _breaks(
        "a worker forgets a job when it sends the end",
        Rule.TAKEN,
        HttpDesign(knows="until its end is sent"),
    ),
    _breaks("a claim over HTTP is sent again", Rule.REPEATED, HttpDesign(repeats="ends and claims")),
)
