"""How far each walk goes: the scopes of the models and what a walk of each is there to meet.

`make test` walks the largest scopes with less of what they have: one worker at a time where another
scope has two, or one draw of a token less. Each smaller scope still meets every event of the whole one,
and every broken design is still caught there. `make test-all` walks the whole scopes, and so does
`WINCH_TEST_ALL=1 python -m tests.model`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from tests.model.at_once import AtOnceScope
from tests.model.commands import CommandScope
from tests.model.explore import Rule
from tests.model.fifo import FifoScope
from tests.model.gate_homes import HomeScope
from tests.model.gates import BatchScope, LimitScope
from tests.model.handover import MoveScope
from tests.model.http_sessions import HttpScope
from tests.model.leases import LeaseScope
from tests.model.moving import StoreMoveScope
from tests.model.moving_families import FamilyScope
from tests.model.moving_keys import KeyMoveScope
from tests.model.notes import NoteScope
from tests.model.queue_rule import RuleScope
from tests.model.rule_parts import PartsScope
from tests.model.schedules import ScheduleScope
from tests.model.waits import WaitScope
from tests.model.world import Scope

EVERY_RULE = frozenset(Rule)
# Set by scripts/test_parts.py --slow.
IS_ALL = "WINCH_TEST_ALL" in os.environ

# What `make test` takes from a scope; the whole one is 67 s of a core, this half of it.
_LESS: dict[str, dict[str, Any]] = {
    "claims": {"draws": 2},
    "operators": {"workers": 1},
    "deaths": {"draws": 1},
    "sessions": {"workers": 1},
    "leases": {"sessions": 1},
    "answers": {"workers": 1},
    "late beats": {"draws": 1},
    "late names": {"draws": 1},
    "rewind": {"workers": 1},
    "rewind, beats": {"sessions": 1},
}


def walked(whole: Scope) -> Scope:
    """The scope that is walked for this one."""
    return whole if IS_ALL else replace(whole, **_LESS.get(whole.name, {}))


# Lost claims, lost finishes, zombies, with each worker as old or as new as it likes.
CLAIMS = Scope("claims", draws=3)
ATTEMPTS = Scope("attempts", sessions=3, outcomes=("ok", "retry"))
TWO_JOBS = Scope("two jobs", jobs=2)
RELEASES = Scope("releases", releases=True)
LOST_CLAIM = Scope("lost claim", workers=1, sessions=1, draws=1)

# An operator at work, processes that die, limits reached.
OPERATORS = Scope("operators", outcomes=("ok", "retry"), resends=0, cancels=1, retries=1, rescue_limit=2)
DEATHS = Scope("deaths", sessions=3, deaths=1, cancels=1, rescue_limit=2)
CRASHES = Scope("crashes", workers=1, sessions=3, deaths=2, cancels=1, rescue_limit=2)

# Transactions of claim, rescue and end_session, statement by statement.
SESSIONS = Scope("sessions", sessions=3, resends=0, deaths=1, statements=frozenset({"claim", "rescue"}))
ONE_SESSION = replace(SESSIONS, name="one session", workers=1, sessions=1, draws=1, restarts=1)
LEASES = replace(ONE_SESSION, name="leases", sessions=2, draws=2, deaths=0, beats=True)
# A rescue passes over locked rows, and sweepers overlap.
SWEEPS = Scope("sweeps", workers=1, sessions=3, deaths=1, skips=True, statements=frozenset({"sweep"}))
# The fenced update and the look-up of finish.
ANSWERS = Scope("answers", outcomes=("ok", "retry"), retries=1, statements=frozenset({"finish"}))

# Beats, and what a session asks to be released, arriving whenever they like.
LATE_BEATS = Scope("late beats", workers=1, resends=0, beats=True, late=frozenset({"beat"}))
LATE_NAMES = Scope("late names", workers=1, sessions=1, beats=True, late=frozenset({"unnamed"}))

# A backup restored under running workers. Without beats in the scope no worker notices. The smaller
# scope with beats checks that all comes to its end.
REWIND = Scope("rewind", resends=0, restores=1)
REWIND_BEATS = Scope("rewind, beats", workers=1, draws=1, beats=True, restores=1)

FIFO_KEY = FifoScope("two members of a FIFO key")
FIFO_OF_THREE = FifoScope("three members of a FIFO key", members=3)
FIFO_CLOCK = FifoScope("a FIFO key, a clock that goes back", failures=0, stored="one by one")
FIFO_CHAIN = FifoScope("a chain in a FIFO key", failures=0, stored="as a chain")
FIFO_HANDED = FifoScope("a FIFO key, finishes that claim", members=3, hands_on=True, lost_replies=1)
FIFO_CALLBACK = FifoScope("a callback in a FIFO key", members=3, failures=0, stored="with a callback")
AT_ONCE = AtOnceScope("sessions that claim more than they run at once")
RULE_PARTS = PartsScope("a rule of a queue in every part")
LIMIT_OF_ONE = LimitScope("limit of one", restarts=1)
LIMIT_OF_TWO = LimitScope("limit of two", limit=2, jobs=3)
ROWS_GO = LimitScope("gates whose rows are removed", jobs=3, rescues=0, resends=0, removes=True)
# Producers that store a job as claimed where its gate has room.
HANDED = LimitScope("jobs handed over under a limit", jobs=3, unstored=2, rescues=1, resends=0)
HANDED_ROWS = LimitScope(
    "jobs handed over, gates whose rows are removed", unstored=1, rescues=0, resends=0, removes=True
)
BATCH = BatchScope("batch")
BATCH_DEATHS = BatchScope("batch, deaths", growths=1, rescues=1, rescue_limit=1, retries=1, restarts=1)
BATCH_CANCEL = BatchScope("batch, cancel", growths=1, rescues=1, cancels=1, retries=1)
WAITS = WaitScope("waits")
# Claims by the hundred, here of two: what their leases count, and whose row lies where.
BY_THE_HUNDRED = LeaseScope("claims by the hundred", writes=0)
PLACES = LeaseScope("places of rows", jobs=1, new=1, deaths=0)
TOGETHER = "members together"

# A job moves from its shard of a cluster to the home shard.
MOVES = MoveScope("hand-over", deaths=2)
MOVES_FAILING = MoveScope("hand-over, failing over", shard_failovers=1, home_failovers=1)
MOVES_WAITING = MoveScope(
    "hand-over of a waiting job", is_waiting=True, shard_failovers=1, home_failovers=1
)
# A queue gets a concurrency while its jobs run and are claimed; the caller may die half way.
QUEUE_RULE = RuleScope("queue rule")
QUEUE_RULE_DYING = RuleScope("queue rule, half set", setter_dies=True)
STORE_MOVES = StoreMoveScope("moves between stores", deaths=2 if IS_ALL else 1)
STORE_MOVE_OF_ONE = StoreMoveScope("move of one job", members=1)
FAMILY_MOVES = FamilyScope("flows in moves")
FAMILY_OF_ONE = FamilyScope("flow of one member in moves", calls=2)
KEY_MOVES = KeyMoveScope("unique keys in moves", turns=3 if IS_ALL else 2, holds=4 if IS_ALL else 3)
HTTP_BATCHES = HttpScope("batches over HTTP", faults=2 if IS_ALL else 1, ends=0)
HTTP_SESSION = HttpScope("a session over HTTP that ends", jobs=1, slots=1, faults=1)
COMMANDS = CommandScope("commands", commands=3 if IS_ALL else 2)
# With three steps and three faults it would be over a million states.
NOTES = NoteScope("steps", steps=3 if IS_ALL else 2)
NOTES_FAULTS = NoteScope("steps, more faults", steps=2 if IS_ALL else 1, faults=3)
# A family of gates goes from its shard of a cluster to the home shard.
GATE_HOMES = HomeScope("gate homes", deaths=2)
BATCH_OF_ONE = BatchScope("batch of one", members=1, growths=1, retries=1, restarts=1)
SCHEDULERS = ScheduleScope("schedulers", tickers=3)
BACKFILLS = ScheduleScope("backfills", tickers=2, backfills=2, forgets=True)

PROTOCOL_SCOPES = (
    CLAIMS,
    ATTEMPTS,
    TWO_JOBS,
    RELEASES,
    LOST_CLAIM,
    OPERATORS,
    DEATHS,
    CRASHES,
    SESSIONS,
    ONE_SESSION,
    LEASES,
    SWEEPS,
    ANSWERS,
    LATE_BEATS,
    LATE_NAMES,
    REWIND,
    REWIND_BEATS,
)
LIMIT_SCOPES = (LIMIT_OF_ONE, LIMIT_OF_TWO, ROWS_GO)
BATCH_SCOPES = (BATCH, BATCH_DEATHS, BATCH_CANCEL, BATCH_OF_ONE)


def rules_for(scope: Scope) -> Collection[Rule]:
    return EVERY_RULE - {Rule.SETTLES} if scope is REWIND else EVERY_RULE


def events_of(scope: Scope) -> tuple[str, ...]:
    """The steps that a walk of this scope must meet."""
    late_names = "unnamed" in scope.late
    promised = {
        "takes job 1; the reply is lost": True,
        "finds its session not live": scope.sessions > 1,
        "a sweeper ends": True,
        "finish under a is answered took": True,
        "finish under a is answered already": scope.resends > 0,
        "finish under a is answered lost": scope.workers > 1,
        "has the jobs of a released": True,
        "release under a is refused": scope.releases,
        "has a delayed beat land": "beat" in scope.late,
        "asks to release what it does not name": late_names,
        "did not name are released": scope.beats,
        "no longer knows it as live; it stops": scope.beats,
        "the store was rewound; it stops": scope.beats and scope.restores > 0,
        "is killed": scope.deaths > 0,
        "the supervisor ends": scope.deaths > 0,
        "operator cancels": scope.cancels > 0,
        "operator retries": scope.retries > 0,
        "backup is restored": scope.restores > 0,
        "the store restarts": scope.restarts > 0,
        "passes over its job": scope.skips,
        "finds its session live and locks it": "claim" in scope.statements,
        "ends it (not committed yet)": "rescue" in scope.statements,
        "matches no row": "finish" in scope.statements,
        "a sweeper reads which": "sweep" in scope.statements,
    }
    return tuple(words for words, is_promised in promised.items() if is_promised)
