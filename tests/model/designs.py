"""What is walked: a case, and the protocol in every scope. Designs that break are in `broken`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from tests.model.at_once import AtOnceDesign, AtOnceModel
from tests.model.commands import CommandDesign, CommandModel
from tests.model.explore import Report, Rule, explore
from tests.model.fifo import FifoDesign, FifoModel
from tests.model.gate_homes import HomeDesign, HomeModel
from tests.model.gates import (
    BatchDesign,
    BatchModel,
    LimitDesign,
    LimitModel,
)
from tests.model.handover import MoveDesign, MoveModel
from tests.model.http_sessions import HttpDesign, HttpModel
from tests.model.leases import LeaseDesign, LeaseModel
from tests.model.moving import StoreMoveDesign, StoreMoveModel
from tests.model.moving_families import FamilyDesign, FamilyModel
from tests.model.moving_keys import KeyMoveDesign, KeyMoveModel
from tests.model.notes import NoteDesign, NoteModel
from tests.model.protocol import ProtocolModel
from tests.model.queue_rule import RuleDesign, RuleModel
from tests.model.rule_parts import PartsDesign, PartsModel
from tests.model.schedules import ScheduleDesign, ScheduleModel
from tests.model.scopes import (
    AT_ONCE,
    BACKFILLS,
    BATCH_SCOPES,
    BY_THE_HUNDRED,
    COMMANDS,
    FAMILY_MOVES,
    FAMILY_OF_ONE,
    FIFO_CALLBACK,
    FIFO_CHAIN,
    FIFO_CLOCK,
    FIFO_HANDED,
    FIFO_KEY,
    FIFO_OF_THREE,
    GATE_HOMES,
    HANDED,
    HANDED_ROWS,
    HTTP_BATCHES,
    HTTP_SESSION,
    KEY_MOVES,
    LATE_NAMES,
    LIMIT_OF_ONE,
    LIMIT_OF_TWO,
    LIMIT_SCOPES,
    MOVES,
    MOVES_FAILING,
    MOVES_WAITING,
    NOTES,
    NOTES_FAULTS,
    ONE_SESSION,
    PLACES,
    PROTOCOL_SCOPES,
    QUEUE_RULE,
    QUEUE_RULE_DYING,
    REWIND_BEATS,
    RULE_PARTS,
    SCHEDULERS,
    STORE_MOVE_OF_ONE,
    STORE_MOVES,
    TOGETHER,
    WAITS,
    events_of,
    rules_for,
    walked,
)
from tests.model.store import Design
from tests.model.together import TogetherDesign, TogetherModel
from tests.model.waits import WaitDesign, WaitModel
from tests.model.world import Scope


@dataclass(frozen=True)
class Case:
    """One walk: a design in a scope, and the rule it is known to break (None: it holds)."""

    design: str
    scope: str
    breaks: Rule | None
    walk: Callable[[], Report]
    # Words from the labels of steps that the walk must meet: a fault that never came tested nothing.
    events: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.design} / {self.scope}"


def _holds(name: str, scopes: Collection[Scope], design: Design) -> list[Case]:
    return [
        Case(
            name,
            s.name,
            None,
            partial(explore, ProtocolModel(design, walked(s)), rules_for(s)),
            events_of(s) if design == Design() else (),
        )
        for s in scopes
    ]


HOLDS: tuple[Case, ...] = (
    *_holds("the protocol", PROTOCOL_SCOPES, Design()),
    *(
        Case("the protocol", s.name, None, partial(explore, LimitModel(LimitDesign(), s)))
        for s in LIMIT_SCOPES
    ),
    *(
        Case(
            "ends beside a claim",
            s.name,
            None,
            partial(explore, LimitModel(LimitDesign(ends="beside a claim"), s)),
            events=("has waited for the ends", "leaves it ready", "leaves it blocked"),
        )
        for s in (LIMIT_OF_ONE, LIMIT_OF_TWO)
    ),
    *(
        Case(
            "the protocol",
            s.name,
            None,
            partial(
                explore,
                LimitModel(LimitDesign(ends="beside a claim", hands_over="after the lock"), s),
            ),
            events=("hand-over of job 2 under a takes it", "hand-over of job 2 under a leaves it ready"),
        )
        for s in (HANDED, HANDED_ROWS)
    ),
    Case(
        "the protocol",
        AT_ONCE.name,
        None,
        partial(explore, AtOnceModel(AtOnceDesign(), AT_ONCE)),
        events=("holds a job", "gives back", "is rescued"),
    ),
    Case(
        "the protocol",
        RULE_PARTS.name,
        None,
        partial(explore, PartsModel(PartsDesign(), RULE_PARTS)),
        events=("dies", "takes up"),
    ),
    *(
        Case("the protocol", s.name, None, partial(explore, FifoModel(FifoDesign(), s)))
        for s in (FIFO_KEY, FIFO_OF_THREE, FIFO_CLOCK, FIFO_CHAIN, FIFO_CALLBACK)
    ),
    Case(
        "the protocol",
        FIFO_HANDED.name,
        None,
        partial(explore, FifoModel(FifoDesign(), FIFO_HANDED)),
        events=("claims job 2", "the reply is lost", "give_up", "repeated finish", "fail"),
    ),
    *(
        Case("the protocol", s.name, None, partial(explore, BatchModel(BatchDesign(), s)))
        for s in BATCH_SCOPES
    ),
    Case(
        "the protocol",
        SCHEDULERS.name,
        None,
        partial(explore, ScheduleModel(ScheduleDesign(), SCHEDULERS)),
        ("dies", "is stale", "ticks (1, 2, 3)"),
    ),
    Case(
        "the protocol",
        BACKFILLS.name,
        None,
        partial(explore, ScheduleModel(ScheduleDesign(), BACKFILLS)),
        ("backfill 2 dies", "backfill 1 stores 3", "ticks (1, 2, 3)", "run is forgotten"),
    ),
    Case(
        "the protocol",
        WAITS.name,
        None,
        partial(explore, WaitModel(WaitDesign(), WAITS)),
        ("dies", "leaves the job waiting", "nothing has come", "makes the job ready"),
    ),
    Case(
        "the protocol",
        BY_THE_HUNDRED.name,
        None,
        partial(explore, LeaseModel(LeaseDesign(), BY_THE_HUNDRED)),
        ("2 jobs with a lease", "took in part", "is rescued", "lease is removed", "filed as running"),
    ),
    Case(
        "the protocol",
        PLACES.name,
        None,
        partial(explore, LeaseModel(LeaseDesign(), PLACES)),
        ("progress is noted", "is enqueued", "looked up by id"),
    ),
    Case(
        "the protocol",
        TOGETHER,
        None,
        partial(explore, TogetherModel(TogetherDesign())),
        ("dies", "is added", "is done", "makes the callback ready"),
    ),
    Case(
        "the protocol",
        MOVES.name,
        None,
        partial(explore, MoveModel(MoveDesign(), MOVES)),
        ("dies", "reply is lost", "finds the message", "brings the job home", "forgets", "prunes"),
    ),
    Case(
        "the protocol",
        MOVES_FAILING.name,
        None,
        partial(explore, MoveModel(MoveDesign(), MOVES_FAILING)),
        ("the shard fails over", "home fails over", "finds the message", "worker dies"),
    ),
    Case(
        "the protocol",
        MOVES_WAITING.name,
        None,
        partial(explore, MoveModel(MoveDesign(), MOVES_WAITING)),
        ("runs it in the shard", "runs it at home", "the shard fails over", "home fails over"),
    ),
    *(
        Case(
            "the protocol",
            scope.name,
            None,
            partial(explore, RuleModel(RuleDesign(), scope)),
            ("in the shard", "takes at home", "running job goes home", "ready job goes home"),
        )
        for scope in (QUEUE_RULE, QUEUE_RULE_DYING)
    ),
    *(
        Case("the protocol", s.name, None, partial(explore, HttpModel(HttpDesign(), s)))
        for s in (HTTP_BATCHES, HTTP_SESSION)
    ),
    Case(
        "the protocol",
        COMMANDS.name,
        None,
        partial(explore, CommandModel(CommandDesign(), COMMANDS)),
        ("dies", "reply is lost", "fails", "read after a delete", "is carried out"),
    ),
    *(
        Case(
            "the protocol",
            scope.name,
            None,
            partial(explore, StoreMoveModel(StoreMoveDesign(), scope)),
            (
                *("mover dies", "answer is lost", "late import", "takes the hold back", "fails"),
                *("ends in the source", "ends in the target", "forgets", "the key is free"),
            ),
        )
        for scope in (STORE_MOVES, STORE_MOVE_OF_ONE)
    ),
    *(
        Case(
            "the protocol",
            scope.name,
            None,
            partial(explore, FamilyModel(FamilyDesign(), scope)),
            ("adds a member", "leaves and comes", "the callback runs", "the flow is closed"),
        )
        for scope in (FAMILY_MOVES, FAMILY_OF_ONE)
    ),
    Case(
        "the protocol",
        KEY_MOVES.name,
        None,
        partial(explore, KeyMoveModel(KeyMoveDesign(), KEY_MOVES)),
        (
            *("takes the hold back", "is refused", "finds the holder", "late raise comes"),
            *("a job leaves", "the holder ends in the source", "the holder ends in the target"),
        ),
    ),
    *(
        Case(
            "the protocol",
            scope.name,
            None,
            partial(explore, NoteModel(NoteDesign(), scope)),
            (
                *("dies", "goes on", "reply is lost", "is refused", "notes life 2"),
                *("is on its way, and given up", "arrives late"),
                *(("stores page", "are deleted") if scope.steps > 1 else ()),
            ),
        )
        for scope in (NOTES, NOTES_FAULTS)
    ),
    Case(
        "the protocol",
        GATE_HOMES.name,
        None,
        partial(explore, HomeModel(HomeDesign(), GATE_HOMES)),
        ("dies on the way", "running job leaves", "sent home by the shard", "other job starts"),
    ),
    # Without replicas there is nothing to wait for, and nothing that sets a part back.
    Case(
        "hand-over without replicas",
        MOVES.name,
        None,
        partial(explore, MoveModel(MoveDesign(waits_for="neither"), MOVES)),
    ),
    *_holds(
        "asks for its tokens instead of naming them",
        (LATE_NAMES, REWIND_BEATS),
        Design(unnamed="asked"),
    ),
    # Belt and braces: the sweep of orphans makes up for what this rescue leaves behind.
    *_holds(
        "rescue reads the jobs before the lock, orphans are swept",
        (ONE_SESSION,),
        Design(rescue_reads_jobs="before the lock"),
    ),
)
