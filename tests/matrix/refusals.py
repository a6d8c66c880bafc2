"""The pairs that Winch refuses, each with the error that has the reason: the same on every store."""

from __future__ import annotations

from dataclasses import dataclass

from tests.matrix.trial import Pair
from winch import ConfigError, WinchError


@dataclass(frozen=True)
class Refusal:
    error: type[WinchError]
    words: str


COMPOSITIONS = ("chain", "group", "chord", "map_", "batch member", "batch callback", "flow node")
WAITING = ("chain", "chord", "map_", "batch callback", "flow node")
INSIDE = ("gather child", "ctx.batch")


def _refusal(words: str) -> Refusal:
    return Refusal(ConfigError, words)


REFUSED: dict[tuple[str, str], Refusal] = {
    **{
        ("delay", shape): _refusal("a job that waits for others takes no delay= and no run_at=")
        for shape in WAITING
    },
    **{("unique", shape): _refusal("takes no unique key") for shape in (*COMPOSITIONS, *INSIDE)},
    **{("given id", shape): _refusal("takes no id=") for shape in (*COMPOSITIONS, *INSIDE)},
    **{("conn=", shape): _refusal("takes no conn=; pass conn= where the whole") for shape in INSIDE},
    ("delay", "schedule"): _refusal("a schedule takes no delay=: its times say when each job runs"),
    ("fifo", "schedule"): _refusal("a schedule takes no fifo=: its jobs come one after another with"),
    ("tenant", "schedule"): _refusal("a schedule takes no tenant=: it belongs to no tenant"),
    ("given id", "schedule"): _refusal("a schedule takes no id=: each scheduled time is one job"),
    ("conn=", "schedule"): _refusal("a schedule takes no conn=: a worker enqueues its jobs"),
}
# On stores that declare no `joins_transactions`.
NO_TRANSACTIONS = _refusal("conn= needs a store that shares the caller's database")


def refusal_of(pair: Pair, *, joins_transactions: bool) -> Refusal | None:
    """How this pair is refused; None: it works."""
    if pair.feature.name == "conn=" and pair.shape.takes_conn and not joins_transactions:
        return NO_TRANSACTIONS
    return REFUSED.get((pair.feature.name, pair.shape.name))
