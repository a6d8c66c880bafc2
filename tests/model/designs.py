"""What is walked: the protocol in every scope, and designs that look right and are not.

A broken design is walked in a scope in which the protocol holds, with the one rule watched that shows
what its users would suffer. So each trace is the fault of the one choice that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from tests.model.explore import Report, Rule, explore
from tests.model.fifo import FifoDesign, FifoModel, FifoScope
from tests.model.gates import (
    BatchDesign,
    BatchModel,
    BatchScope,
    LimitDesign,
    LimitModel,
    LimitScope,
)
from tests.model.handover import MoveDesign, MoveModel, MoveScope
from tests.model.leases import LeaseDesign, LeaseModel, LeaseScope
from tests.model.protocol import ProtocolModel
from tests.model.schedules import ScheduleDesign, ScheduleModel, ScheduleScope
from tests.model.store import Design
from tests.model.together import TogetherDesign, TogetherModel
from tests.model.waits import WaitDesign, WaitModel, WaitScope
from tests.model.world import Scope

EVERY_RULE = frozenset(Rule)


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


# -- scopes ----------------------------------------------------------------------------------------

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

# A backup restored under running workers. Without beats in the scope nobody notices, so whether all
# comes to its end is asked in the smaller scope that has them.
REWIND = Scope("rewind", resends=0, restores=1)
REWIND_BEATS = Scope("rewind, beats", workers=1, draws=1, beats=True, restores=1)

FIFO_KEY = FifoScope("two members of a FIFO key")
FIFO_OF_THREE = FifoScope("three members of a FIFO key", members=3)
FIFO_CLOCK = FifoScope("a FIFO key, a clock that goes back", failures=0, stored="one by one")
FIFO_CHAIN = FifoScope("a chain in a FIFO key", failures=0, stored="as a chain")
FIFO_CALLBACK = FifoScope("a callback in a FIFO key", members=3, failures=0, stored="with a callback")
LIMIT_OF_ONE = LimitScope("limit of one", restarts=1)
LIMIT_OF_TWO = LimitScope("limit of two", limit=2, jobs=3)
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
BATCH_OF_ONE = BatchScope("batch of one", members=1, growths=1, retries=1, restarts=1)
SCHEDULERS = ScheduleScope("schedulers", tickers=3)

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
LIMIT_SCOPES = (LIMIT_OF_ONE, LIMIT_OF_TWO)
BATCH_SCOPES = (BATCH, BATCH_DEATHS, BATCH_CANCEL, BATCH_OF_ONE)


def rules_for(scope: Scope) -> Collection[Rule]:
    return EVERY_RULE - {Rule.SETTLES} if scope is REWIND else EVERY_RULE


def events_of(scope: Scope) -> tuple[str, ...]:
    """Say what a walk of this scope is there to meet."""
    late_names = "unnamed" in scope.late
    promised = {
        "takes job 1; nobody hears the reply": True,
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


# -- what holds ------------------------------------------------------------------------------------


def _holds(name: str, scopes: Collection[Scope], design: Design) -> list[Case]:
    return [
        Case(
            name,
            s.name,
            None,
            partial(explore, ProtocolModel(design, s), rules_for(s)),
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
        Case("the protocol", s.name, None, partial(explore, FifoModel(FifoDesign(), s)))
        for s in (FIFO_KEY, FIFO_OF_THREE, FIFO_CLOCK, FIFO_CHAIN, FIFO_CALLBACK)
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
        ("dies", "nobody hears", "finds the message", "brings the job home", "forgets", "prunes"),
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


# -- what does not ---------------------------------------------------------------------------------


def _breaks(name: str, rule: Rule, scope: Scope, design: Design) -> Case:
    return Case(name, scope.name, rule, partial(explore, ProtocolModel(design, scope), (rule,)))


def _limit_breaks(name: str, rule: Rule, scope: LimitScope, design: LimitDesign) -> Case:
    return Case(name, scope.name, rule, partial(explore, LimitModel(design, scope), (rule,)))


def _batch_breaks(name: str, rule: Rule, scope: BatchScope, design: BatchDesign) -> Case:
    return Case(name, scope.name, rule, partial(explore, BatchModel(design, scope), (rule,)))


def _schedule_breaks(name: str, rule: Rule, design: ScheduleDesign) -> Case:
    model = ScheduleModel(design, SCHEDULERS)
    return Case(name, SCHEDULERS.name, rule, partial(explore, model, (rule,)))


def _wait_breaks(name: str, design: WaitDesign) -> Case:
    walk = partial(explore, WaitModel(design, WAITS), (Rule.SETTLES,))
    return Case(name, WAITS.name, Rule.SETTLES, walk)


def _lease_breaks(
    name: str, rule: Rule, design: LeaseDesign, scope: LeaseScope = BY_THE_HUNDRED
) -> Case:
    return Case(name, scope.name, rule, partial(explore, LeaseModel(design, scope), (rule,)))


def _together_breaks(name: str, rule: Rule, design: TogetherDesign) -> Case:
    return Case(name, TOGETHER, rule, partial(explore, TogetherModel(design), (rule,)))


def _move_breaks(name: str, rule: Rule, design: MoveDesign, scope: MoveScope = MOVES) -> Case:
    return Case(name, scope.name, rule, partial(explore, MoveModel(design, scope), (rule,)))


BROKEN: tuple[Case, ...] = (
    # The hand-over.
    _move_breaks(
        "the message is let go when it is sent",
        Rule.SETTLES,
        MoveDesign(forgets="when sent"),
        MOVES_FAILING,
    ),
    _move_breaks("home is not waited for", Rule.SETTLES, MoveDesign(waits_for="shard"), MOVES_FAILING),
    _move_breaks(
        "the shard is not waited for", Rule.ONE_CLAIM, MoveDesign(waits_for="home"), MOVES_FAILING
    ),
    _move_breaks("the job is copied, not moved", Rule.ONE_CLAIM, MoveDesign(departs="copies")),
    _move_breaks("a message is applied again", Rule.FINAL, MoveDesign(applies="always")),
    _move_breaks(
        "home forgets messages with their jobs", Rule.FINAL, MoveDesign(applies="while the job is there")
    ),
    _move_breaks("the claim stays behind", Rule.REFUSED, MoveDesign(keeps_claim=False)),
    _move_breaks(
        "a finish looks in both parts only", Rule.REFUSED, MoveDesign(finish_looks="in both parts")
    ),
    # Waits.
    _wait_breaks("a wait is not looked at when it begins", WaitDesign(wait_is_looked_at=False)),
    _wait_breaks(
        "an end is told to who is seen waiting",
        WaitDesign(tells="who is seen waiting", wait_is_looked_at=False),
    ),
    _wait_breaks("what is left is counted before the lock", WaitDesign(counts="before the lock")),
    _wait_breaks("keys leave the list before the look is over", WaitDesign(takes_keys="at once")),
    # Claims by the hundred.
    _lease_breaks(
        "a claim takes what is filed as ready", Rule.ONE_CLAIM, LeaseDesign(takes="filed as ready")
    ),
    _lease_breaks(
        "a finish takes the row at its place",
        Rule.FOREIGN_RUN,
        LeaseDesign(at_the_place="nothing"),
        PLACES,
    ),
    _lease_breaks(
        "a repeated finish counts the lease down", Rule.SETTLES, LeaseDesign(counts_down="every call")
    ),
    _lease_breaks("a lease goes when it is old", Rule.SETTLES, LeaseDesign(removes="old")),
    _lease_breaks("rows are filed as they were read", Rule.SETTLES, LeaseDesign(files="as read")),
    _lease_breaks(
        "rescue looks at filed rows only", Rule.SETTLES, LeaseDesign(finds="filed as running")
    ),
    # Members that are waited for together.
    _together_breaks(
        "an end leaves out a key that is in the list",
        Rule.SETTLES,
        TogetherDesign(skips="what is in the list"),
    ),
    _together_breaks(
        "members are looked at before the keys are taken up",
        Rule.SETTLES,
        TogetherDesign(looks="before the keys"),
    ),
    _together_breaks(
        "members are counted by a number nobody locks", Rule.SETTLES, TogetherDesign(counts="a number")
    ),
    _together_breaks("members are added by who has ended", Rule.EARLY, TogetherDesign(grows="whenever")),
    # Fences that are none.
    _breaks("finish by id", Rule.FINAL, ATTEMPTS, Design(finish_fence="id")),
    _breaks("finish by state (running)", Rule.FOREIGN_RUN, ATTEMPTS, Design(finish_fence="state")),
    _breaks("finish by attempt number", Rule.FOREIGN_RUN, ATTEMPTS, Design(finish_fence="attempt")),
    _breaks("release by id", Rule.FOREIGN_WRITE, RELEASES, Design(release_fence="id")),
    _breaks("tokens from a counter", Rule.FOREIGN_RUN, REWIND, Design(tokens="counter")),
    _breaks("fence number + 1", Rule.FENCE, REWIND, Design(fence_number="counter")),
    # A claim whose reply is lost.
    _breaks(
        "claim repeated with its token",
        Rule.FOREIGN_WRITE,
        ATTEMPTS,
        Design(lost_claim="repeat"),
    ),
    _breaks(
        "lost claim given up once",
        Rule.SETTLES,
        LOST_CLAIM,
        Design(give_up="once", unnamed="none"),
    ),
    _breaks("only known lost claims given up", Rule.SETTLES, REWIND_BEATS, Design(unnamed="none")),
    _breaks("unnamed claims released at any age", Rule.TAKEN, LATE_NAMES, Design(unnamed="any age")),
    _breaks(
        "unnamed claims aged by the store's last beat",
        Rule.TAKEN,
        LATE_NAMES,
        Design(unnamed="older than last beat"),
    ),
    # Finding out about an earlier finish.
    _breaks("finish without `already`", Rule.FALSE_LOST, ATTEMPTS, Design(lookup="none")),
    _breaks(
        "look-up in the statement of the update",
        Rule.FALSE_LOST,
        ANSWERS,
        Design(lookup="same statement"),
    ),
    _breaks(
        "look-up in two statements, live then archive",
        Rule.FALSE_LOST,
        ANSWERS,
        Design(lookup="live, then archive"),
    ),
    _breaks(
        "token of a completed attempt overwritten by the next",
        Rule.FALSE_LOST,
        ANSWERS,
        Design(history="last completed only"),
    ),
    # Sessions and rescue.
    _breaks(
        "rescue leaves the session open: late claim",
        Rule.DEAD_SESSION,
        SESSIONS,
        Design(rescue_ends_session=False),
    ),
    _breaks(
        "rescue leaves the session open: late beat",
        Rule.REVIVED,
        LATE_BEATS,
        Design(rescue_ends_session=False),
    ),
    _breaks(
        "claim does not lock its session",
        Rule.DEAD_SESSION,
        SESSIONS,
        Design(claim_locks_session=False),
    ),
    _breaks(
        "claim does not lock its session, no sweep of orphans",
        Rule.SETTLES,
        ONE_SESSION,
        Design(claim_locks_session=False, sweep="none"),
    ),
    _breaks(
        "rescue reads the jobs before the lock, no sweep of orphans",
        Rule.SETTLES,
        ONE_SESSION,
        Design(rescue_reads_jobs="before the lock", sweep="none"),
    ),
    _breaks(
        "rescue reads the lease before the lock",
        Rule.TAKEN,
        LEASES,
        Design(rescue_reads_lease="before the lock"),
    ),
    _breaks("no sweep of orphans", Rule.SETTLES, SWEEPS, Design(sweep="none")),
    _breaks("orphans swept by session", Rule.TAKEN, SWEEPS, Design(sweep="by session")),
    _breaks(
        "rewind noticed by a lower count",
        Rule.UNNOTICED,
        REWIND_BEATS,
        Design(rewind_check="answer lower"),
    ),
    _breaks(
        "rewind noticed by a count that is not higher",
        Rule.UNNOTICED,
        REWIND_BEATS,
        Design(rewind_check="answer not higher"),
    ),
    _breaks(
        "retry keeps the request to cancel",
        Rule.STALE_CANCEL,
        OPERATORS,
        Design(retry_clears_cancel=False),
    ),
    # Schedules.
    _schedule_breaks(
        "a tick by what was read before the lock",
        Rule.WINDOW_TWICE,
        ScheduleDesign(decides_by="what it read"),
    ),
    _schedule_breaks(
        "the window marked before its job is stored",
        Rule.SETTLES,
        ScheduleDesign(writes="window, then job"),
    ),
    _schedule_breaks(
        "the job stored before its window is marked",
        Rule.WINDOW_TWICE,
        ScheduleDesign(writes="job, then window"),
    ),
    _schedule_breaks(
        "a tick by the clock of its process", Rule.WINDOW_EARLY, ScheduleDesign(time="its own")
    ),
    # FIFO keys.
    Case(
        "ends a member without locking the gate",
        FIFO_KEY.name,
        Rule.SETTLES,
        partial(explore, FifoModel(FifoDesign(locks="claims"), FIFO_KEY), (Rule.SETTLES,)),
    ),
    Case(
        "looks at the members in the statement that locks the gate",
        FIFO_KEY.name,
        Rule.SETTLES,
        partial(explore, FifoModel(FifoDesign(reads="with the lock"), FIFO_KEY), (Rule.SETTLES,)),
    ),
    Case(
        "gives the turn up with the claim",
        FIFO_KEY.name,
        Rule.FIFO,
        partial(explore, FifoModel(FifoDesign(turn_ends="with its claim"), FIFO_KEY), (Rule.FIFO,)),
    ),
    *(
        Case(
            "orders the members of a key by the moment of their enqueue and their ids",
            scope.name,
            rule,
            partial(explore, FifoModel(FifoDesign(order="by moment and id"), scope), (rule,)),
        )
        for scope, rule in ((FIFO_KEY, Rule.FIFO), (FIFO_CLOCK, Rule.FIFO), (FIFO_CHAIN, Rule.SETTLES))
    ),
    Case(
        "makes the first member ready whatever it waits for",
        FIFO_CALLBACK.name,
        Rule.EARLY,
        partial(explore, FifoModel(FifoDesign(admits="who is first"), FIFO_CALLBACK), (Rule.EARLY,)),
    ),
    # Limits.
    _limit_breaks(
        "permits counted without a gate lock",
        Rule.LIMIT,
        LIMIT_OF_TWO,
        LimitDesign(locks="none"),
    ),
    _limit_breaks(
        "permits counted in the statement that locks",
        Rule.LIMIT,
        LIMIT_OF_ONE,
        LimitDesign(reads="with the lock"),
    ),
    _limit_breaks(
        "permits returned without a gate lock",
        Rule.SETTLES,
        LIMIT_OF_ONE,
        LimitDesign(locks="takers"),
    ),
    _limit_breaks(
        "a zombie's finish returns the permit",
        Rule.LIMIT,
        LIMIT_OF_ONE,
        LimitDesign(permit_ends="with any finish"),
    ),
    _limit_breaks(
        "finish locks the job before the gate",
        Rule.SETTLES,
        LIMIT_OF_ONE,
        LimitDesign(finish_order="job, then gate"),
    ),
    # Batches.
    _batch_breaks(
        "members counted without a gate lock",
        Rule.SETTLES,
        BATCH,
        BatchDesign(locks_gate=False),
    ),
    _batch_breaks(
        "members counted in the statement that locks",
        Rule.SETTLES,
        BATCH,
        BatchDesign(recounts="with the lock"),
    ),
    _batch_breaks(
        "members counted before the own row is locked",
        Rule.EARLY,
        BATCH_OF_ONE,
        BatchDesign(recounts="before its own write"),
    ),
    _batch_breaks(
        "the number at zero is trusted", Rule.EARLY, BATCH_OF_ONE, BatchDesign(at_zero="trust")
    ),
    _batch_breaks(
        "members recounted, the count not kept",
        Rule.SETTLES,
        BATCH_OF_ONE,
        BatchDesign(at_zero="recount"),
    ),
    _batch_breaks(
        "members added without a lock on the adding one",
        Rule.EARLY,
        BATCH_OF_ONE,
        BatchDesign(growth_locks_member=False),
    ),
    _batch_breaks(
        "nothing remembers that the callback fired",
        Rule.TWICE,
        BATCH_OF_ONE,
        BatchDesign(fires="whenever complete"),
    ),
)
