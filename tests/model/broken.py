"""Designs that look right and are not.

A broken design is walked in a scope in which the protocol holds, with the one rule watched that shows
what its users would suffer. So each trace is the fault of the one choice that differs.
"""

from __future__ import annotations

from functools import partial

from tests.model.at_once import AtOnceDesign, AtOnceModel
from tests.model.commands import CommandDesign, CommandModel
from tests.model.designs import Case
from tests.model.explore import Rule, explore
from tests.model.fifo import FifoDesign, FifoModel
from tests.model.gate_homes import HomeDesign, HomeModel
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
from tests.model.moving import StoreMoveDesign, StoreMoveModel
from tests.model.moving_families import FamilyDesign, FamilyModel, FamilyScope
from tests.model.moving_keys import KeyMoveDesign, KeyMoveModel
from tests.model.notes import NoteDesign, NoteModel
from tests.model.protocol import ProtocolModel
from tests.model.queue_rule import RuleDesign, RuleModel, RuleScope
from tests.model.schedules import ScheduleDesign, ScheduleModel
from tests.model.scopes import (
    ANSWERS,
    AT_ONCE,
    ATTEMPTS,
    BACKFILLS,
    BATCH,
    BATCH_OF_ONE,
    BY_THE_HUNDRED,
    COMMANDS,
    FAMILY_MOVES,
    FAMILY_OF_ONE,
    FIFO_CALLBACK,
    FIFO_CHAIN,
    FIFO_CLOCK,
    FIFO_HANDED,
    FIFO_KEY,
    GATE_HOMES,
    HANDED,
    KEY_MOVES,
    LATE_BEATS,
    LATE_NAMES,
    LEASES,
    LIMIT_OF_ONE,
    LIMIT_OF_TWO,
    LOST_CLAIM,
    MOVES,
    MOVES_FAILING,
    NOTES,
    ONE_SESSION,
    OPERATORS,
    PLACES,
    QUEUE_RULE,
    QUEUE_RULE_DYING,
    RELEASES,
    REWIND,
    REWIND_BEATS,
    ROWS_GO,
    SCHEDULERS,
    SESSIONS,
    STORE_MOVE_OF_ONE,
    STORE_MOVES,
    SWEEPS,
    TOGETHER,
    WAITS,
    walked,
)
from tests.model.store import Design
from tests.model.together import TogetherDesign, TogetherModel
from tests.model.waits import WaitDesign, WaitModel
from tests.model.world import Scope


def _breaks(name: str, rule: Rule, scope: Scope, design: Design) -> Case:
    return Case(name, scope.name, rule, partial(explore, ProtocolModel(design, walked(scope)), (rule,)))


def _limit_breaks(name: str, rule: Rule, scope: LimitScope, design: LimitDesign) -> Case:
    return Case(name, scope.name, rule, partial(explore, LimitModel(design, scope), (rule,)))


def _at_once_breaks(name: str, design: AtOnceDesign) -> Case:
    model = AtOnceModel(design, AT_ONCE)
    return Case(name, AT_ONCE.name, Rule.LIMIT, partial(explore, model, (Rule.LIMIT,)))


def _batch_breaks(name: str, rule: Rule, scope: BatchScope, design: BatchDesign) -> Case:
    return Case(name, scope.name, rule, partial(explore, BatchModel(design, scope), (rule,)))


def _backfill_breaks(name: str, design: ScheduleDesign) -> Case:
    rule = Rule.WINDOW_TWICE
    run = partial(explore, ScheduleModel(design, BACKFILLS), (rule,))
    return Case(name, BACKFILLS.name, rule, run)


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


def _rule_breaks(
    name: str, design: RuleDesign, rule: Rule = Rule.LIMIT, scope: RuleScope = QUEUE_RULE
) -> Case:
    return Case(name, scope.name, rule, partial(explore, RuleModel(design, scope), (rule,)))


def _command_breaks(name: str, rule: Rule, design: CommandDesign) -> Case:
    return Case(name, COMMANDS.name, rule, partial(explore, CommandModel(design, COMMANDS), (rule,)))


def _store_move_breaks(name: str, rule: Rule, design: StoreMoveDesign) -> Case:
    scope = STORE_MOVES if rule is Rule.FIFO else STORE_MOVE_OF_ONE
    return Case(name, scope.name, rule, partial(explore, StoreMoveModel(design, scope), (rule,)))


def _family_breaks(
    name: str, rule: Rule, design: FamilyDesign, scope: FamilyScope = FAMILY_OF_ONE
) -> Case:
    return Case(name, scope.name, rule, partial(explore, FamilyModel(design, scope), (rule,)))


def _key_move_breaks(name: str, design: KeyMoveDesign) -> Case:
    rule = Rule.MOVE_KEY
    return Case(name, KEY_MOVES.name, rule, partial(explore, KeyMoveModel(design, KEY_MOVES), (rule,)))


def _note_breaks(name: str, rule: Rule, design: NoteDesign) -> Case:
    return Case(name, NOTES.name, rule, partial(explore, NoteModel(design, NOTES), (rule,)))


def _home_breaks(name: str, design: HomeDesign, rule: Rule = Rule.LIMIT) -> Case:
    model = HomeModel(design, GATE_HOMES)
    return Case(name, GATE_HOMES.name, rule, partial(explore, model, (rule,)))


BROKEN: tuple[Case, ...] = (
    # Commands to a worker.
    _command_breaks(
        "a command is forgotten with its delete",
        Rule.COMMAND_TWICE,
        CommandDesign(remembers="until the delete"),
    ),
    _command_breaks(
        "a command is deleted before its answer", Rule.SETTLES, CommandDesign(first="delete")
    ),
    _command_breaks(
        "commands are numbered by clocks", Rule.COMMAND_ORDER, CommandDesign(numbers="clocks")
    ),
    # A flow that moves between stores.
    _family_breaks("final members stay", Rule.MOVE_GONE, FamilyDesign(leaves="live ones")),
    _family_breaks("members leave alone", Rule.EARLY, FamilyDesign(leaves="each alone")),
    _family_breaks("a family grows while it leaves", Rule.EARLY, FamilyDesign(pauses_source=False)),
    _family_breaks("an open flow leaves", Rule.EARLY, FamilyDesign(waits_until_closed=False)),
    _family_breaks(
        "a flow goes on in the other store",
        Rule.EARLY,
        FamilyDesign(goes_on="where the route leads"),
        FAMILY_MOVES,
    ),
    # A unique key whose queue moves between stores.
    _key_move_breaks("producers are trusted to be quick", KeyMoveDesign(compares="never")),
    _key_move_breaks("the fence is read before the transaction", KeyMoveDesign(compares="before it")),
    _key_move_breaks("the fence rises over an open transaction", KeyMoveDesign(waits_for_open=False)),
    _key_move_breaks("a late raise lowers the fence", KeyMoveDesign(only_rises=False)),
    _key_move_breaks("the parcel is looked at first", KeyMoveDesign(looks="parcel, source")),
    _key_move_breaks("a holder is looked for in one store", KeyMoveDesign(looks="nowhere")),
    # A move between stores.
    _store_move_breaks(
        "jobs leave with the mover alone", Rule.MOVE_LOST, StoreMoveDesign(leaves="with the mover")
    ),
    _store_move_breaks(
        "jobs are copied before they leave", Rule.MOVE_TWICE, StoreMoveDesign(leaves="after its copy")
    ),
    _store_move_breaks(
        "imports are recognised by id", Rule.MOVE_TWICE, StoreMoveDesign(recognises="id")
    ),
    _store_move_breaks(
        "a producer has not heard of the route",
        Rule.FIFO,
        StoreMoveDesign(waits_for_producers=False, pauses_source=False),
    ),
    _store_move_breaks(
        "no key is held for a running member", Rule.FIFO, StoreMoveDesign(holds_keys=False)
    ),
    _store_move_breaks(
        "the target runs while members are on their way", Rule.FIFO, StoreMoveDesign(target_waits=False)
    ),
    _store_move_breaks(
        "a worker of the source goes on", Rule.FIFO, StoreMoveDesign(pauses_source=False)
    ),
    # The history of a workflow.
    _note_breaks("notes without a fence", Rule.STEP_AGAIN, NoteDesign(is_fenced=False)),
    _note_breaks("a result before its note", Rule.STEP_AGAIN, NoteDesign(result="before the note")),
    _note_breaks("the head before its page", Rule.PAGE, NoteDesign(first="head")),
    _note_breaks("pages deleted before the head", Rule.PAGE, NoteDesign(forgets="before the head")),
    _note_breaks("notes without a number", Rule.STEP_AGAIN, NoteDesign(number="none")),
    _note_breaks("numbers of all claims compared", Rule.STEP_AGAIN, NoteDesign(number="of the job")),
    # A family of gates goes home in a cluster.
    _home_breaks("the shard lets jobs start while they leave", HomeDesign(shard_holds=False)),
    _home_breaks("home lets jobs start before all have come", HomeDesign(home_holds=False)),
    _home_breaks("permits stay behind", HomeDesign(brings_permits=False)),
    _home_breaks("jobs on their way are not waited for", HomeDesign(awaits_messages=False)),
    _home_breaks("a job is stored at home before its gate is there", HomeDesign(stores="at once")),
    _home_breaks("a shard that is shut takes new jobs", HomeDesign(shard_refuses=False), Rule.SETTLES),
    _home_breaks("no driver ends what another began", HomeDesign(is_continued=False), Rule.SETTLES),
    _home_breaks("the shard is shut before home knows", HomeDesign(first="shard"), Rule.SETTLES),
    # The concurrency of a queue in a cluster.
    _rule_breaks("the shard stays open", RuleDesign(closes_shard=False)),
    _rule_breaks("jobs that run in the shard stay there", RuleDesign(brings_running=False)),
    _rule_breaks("what arrives is not counted", RuleDesign(counts_arrivals=False)),
    _rule_breaks("room is what a look has found", RuleDesign(counts="as it looks")),
    _rule_breaks(
        "the shard is closed before home counts",
        RuleDesign(first="shard"),
        Rule.SETTLES,
        QUEUE_RULE_DYING,
    ),
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
        "an end is recorded only for a waiter that was seen",
        WaitDesign(records="for a seen waiter", wait_is_looked_at=False),
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
        "members are counted by an unlocked number", Rule.SETTLES, TogetherDesign(counts="a number")
    ),
    _together_breaks(
        "members are added by a member that has ended", Rule.EARLY, TogetherDesign(grows="whenever")
    ),
    # Fences that fence nothing.
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
    _backfill_breaks("a backfill by what it has read", ScheduleDesign(recognises="nothing")),
    _backfill_breaks("a window recognised by its run alone", ScheduleDesign(recognises="run")),
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
        partial(explore, FifoModel(FifoDesign(admits="the first member"), FIFO_CALLBACK), (Rule.EARLY,)),
    ),
    *(
        Case(name, FIFO_HANDED.name, rule, partial(explore, FifoModel(design, FIFO_HANDED), (rule,)))
        for name, rule, design in (
            ("claims the next member after a failure", Rule.FIFO, FifoDesign(goes_on="after any end")),
            ("a repeated finish claims again", Rule.FIFO, FifoDesign(repeats="claim again")),
            (
                "forgets a claim whose reply was lost",
                Rule.SETTLES,
                FifoDesign(lost_claims="are forgotten"),
            ),
        )
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
        "a claim blocks a job beside the end that returns the permit",
        Rule.SETTLES,
        LIMIT_OF_ONE,
        LimitDesign(ends="beside a claim", blocks="beside ends"),
    ),
    _limit_breaks(
        "a claim waits for the ends beside it and blocks by what it counted before",
        Rule.SETTLES,
        LIMIT_OF_ONE,
        LimitDesign(ends="beside a claim", blocks="alone"),
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
    _limit_breaks(
        "a claim goes on without the gate's row that was removed while it waited",
        Rule.LIMIT,
        ROWS_GO,
        LimitDesign(when_gone="goes on"),
    ),
    _limit_breaks(
        "a producer hands a job over without the gate's lock",
        Rule.LIMIT,
        HANDED,
        LimitDesign(ends="beside a claim", hands_over="without a lock"),
    ),
    _limit_breaks(
        "a producer counts permits before it has the gate",
        Rule.LIMIT,
        HANDED,
        LimitDesign(ends="beside a claim", hands_over="before the lock"),
    ),
    _at_once_breaks("a session counts once, however many jobs it runs", AtOnceDesign(counts="one")),
    _at_once_breaks(
        "only the first jobs of a session have permits, which end with those jobs",
        AtOnceDesign(counts="permits of its first jobs"),
    ),
    _at_once_breaks("a worker runs more jobs at once than it named", AtOnceDesign(runs_more=1)),
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
