"""Gates: a limit on what runs at once, and the callback of a batch.

Both promises are about several rows at a time, and READ COMMITTED promises nothing about several rows.
Each verb is walked as the statements of one transaction, and its writes are invisible before the last
one, which is also its commit. A statement that waits for a lock keeps the snapshot from before the
wait; so a design that reads in the same statement as it locks takes its reading in an earlier step. A
verb that would only wait has no step until the lock is free.

Sessions, beats and lost claims are left to `protocol`: here a rescue may come at any moment, and a
worker whose claim was rescued goes on as a zombie and sends its finish. A claim is (job, token), with
tokens lettered by job, because no rule here compares the tokens of two jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step
from tests.model.store import FINAL

UNREAD = -1
# A hand-over is of a producer, whose job is stored as claimed.
TAKERS = ("claim", "hand-over")


class Claim(NamedTuple):
    job: int
    token: int

    def __str__(self) -> str:
        token = f" under {chr(ord('a') + self.token - 1)}" if self.token else ""
        return f"job {self.job + 1}{token}"


class Row(NamedTuple):
    """A job, as far as gates care."""

    state: str = "ready"
    token: int = 0  # of the latest claim; live while the job is running
    is_late: bool = False  # ghost: brought back after the callback, or added by such a member

    def runs_under(self, claim: Claim) -> bool:
        """The fence that every write about a claim has to pass."""
        return self.state == "running" and self.token == claim.token


class Transaction(NamedTuple):
    """A verb under way: what it has locked and what it has read."""

    verb: str
    claim: Claim
    has_gate: bool = False
    has_job: bool = False
    read: int = UNREAD  # permits, unfinished members, or the waiting job
    row: int = 0  # the gate's row that it waits for or has, where rows are removed
    is_sharing: bool = False  # its lock of the gate lets an end, or one claim, go on beside it
    before: int = UNREAD  # permits when it first counted them

    def __str__(self) -> str:
        return f"{self.verb} of {self.claim}"


Rows = tuple[Row, ...]
Transactions = tuple[Transaction, ...]


def _changed(jobs: Rows, number: int, row: Row) -> Rows:
    return (*jobs[:number], row, *jobs[number + 1 :])


def _added(under_way: Transactions, transaction: Transaction) -> Transactions:
    return tuple(sorted((*under_way, transaction)))


def _removed(under_way: Transactions, transaction: Transaction) -> Transactions:
    at = under_way.index(transaction)
    return (*under_way[:at], *under_way[at + 1 :])


def _is_gate_locked(under_way: Transactions, by: Transaction | None = None) -> bool:
    """Whether one of them keeps this transaction from the gate; None: from having it alone."""
    return any(
        other.has_gate
        and not (
            by is not None
            and other.is_sharing
            and (by.verb == "finish" or (by.verb in TAKERS and other.verb == "finish"))
        )
        for other in under_way
    )


def _is_job_locked(under_way: Transactions, number: int) -> bool:
    return any(transaction.has_job and transaction.claim.job == number for transaction in under_way)


# -- a limit ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LimitDesign:
    """The defaults are the protocol."""

    # Which verbs lock the gate's row first: all, only those that take a permit, or none.
    locks: Literal["all", "takers", "none"] = "all"
    reads: Literal["after the lock", "with the lock"] = "after the lock"
    # Whether a permit goes with the claim it was given to, or with whatever finish names the job.
    permit_ends: Literal["with its claim", "with any finish"] = "with its claim"
    finish_order: Literal["gate, then job", "job, then gate"] = "gate, then job"
    # Whether an end of a claim has the gate alone, or beside other ends and one claim. Before that claim
    # blocks a job, it has the gate alone, too, and counts again.
    ends: Literal["alone", "beside a claim"] = "alone"
    blocks: Literal["alone, counted again", "alone", "beside ends"] = "alone, counted again"
    # What a transaction does that has waited for the gate's row, when the row is gone after the wait.
    when_gone: Literal["locks again", "goes on"] = "locks again"
    # How a producer counts permits for a job that it stores as claimed. It waits for no lock: instead of
    # that, and where the gate is closed, it stores the job as ready.
    hands_over: Literal["no", "after the lock", "before the lock", "without a lock"] = "no"


@dataclass(frozen=True)
class LimitScope:
    name: str
    limit: int = 1
    jobs: int = 2
    claims: int = 2  # under way at once
    rescues: int = 1
    resends: int = 1
    restarts: int = 0
    removes: bool = False  # the end of the last claim removes the gate's row
    unstored: int = 0  # of the jobs: a producer is about to store them


class LimitState(NamedTuple):
    jobs: Rows
    permits: tuple[Claim, ...] = ()
    runs: tuple[Claim, ...] = ()  # handlers in workers, zombies among them
    under_way: Transactions = ()
    rescues: int = 0
    resends: int = 0
    restarts: int = 0
    row: int = 0  # of the gate, where rows are removed; 0: there is none
    made: int = 0  # how many there have been


LimitSteps = Iterator[Step[LimitState]]


class LimitModel:
    """Jobs of one key with a limit, claimed, finished and rescued by any process at any time."""

    def __init__(self, design: LimitDesign, scope: LimitScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> LimitState:
        unstored = (Row("unstored"),) * self.scope.unstored
        return LimitState(jobs=(Row(),) * (self.scope.jobs - self.scope.unstored) + unstored)

    def is_settled(self, state: LimitState) -> bool:
        return all(row.state == "completed" for row in state.jobs)

    def breaches(self, state: LimitState) -> tuple[Rule, ...]:
        live = {Claim(n, row.token) for n, row in enumerate(state.jobs) if row.state == "running"}
        found = [Rule.LEAK] if live != set(state.permits) else []
        if max(len(live), len(state.permits)) > self.scope.limit:
            found.append(Rule.LIMIT)
        return tuple(found)

    def describe(self, state: LimitState) -> str:
        jobs = ", ".join(f"job {n + 1} {row.state}" for n, row in enumerate(state.jobs))
        permits = ", ".join(str(claim) for claim in state.permits) or "none"
        return f"{jobs}; permits: {permits}"

    def steps(self, state: LimitState) -> LimitSteps:
        yield from self._beginnings(state)
        for transaction in dict.fromkeys(state.under_way):
            others = state._replace(under_way=_removed(state.under_way, transaction))
            if transaction.verb == "hand-over":
                ready = _changed(state.jobs, transaction.claim.job, Row())
                yield Step(f"{transaction} leaves it ready", others._replace(jobs=ready))
            yield from self._proceed(others, transaction)
        if state.restarts < self.scope.restarts and state.under_way:
            # Workers send an unanswered finish again; the process of a claim or a rescue is gone.
            unanswered = [t.claim for t in state.under_way if t.verb == "finish"]
            yield Step(
                "the store restarts; transactions under way roll back",
                state._replace(
                    under_way=(),
                    runs=tuple(sorted((*state.runs, *unanswered))),
                    restarts=state.restarts + 1,
                ),
                is_help=True,
            )

    def _beginnings(self, state: LimitState) -> LimitSteps:
        claims = [t.claim for t in state.under_way if t.verb == "claim"]
        rescues = [t.claim for t in state.under_way if t.verb == "rescue"]
        for number, row in enumerate(state.jobs):
            if row.state == "unstored" and not any(t.claim.job == number for t in state.under_way):
                ready = _changed(state.jobs, number, Row())
                yield Step(f"job {number + 1} is stored", state._replace(jobs=ready))
                if self.design.hands_over != "no":
                    yield from self._proceed(state, Transaction("hand-over", Claim(number, 1)))
            # Two claims of one job at a time add nothing: the second passes over the locked row.
            claim = Claim(number, row.token + 1)
            if row.state == "ready" and len(claims) < self.scope.claims and claim not in claims:
                yield from self._proceed(state, Transaction("claim", claim))
            live = Claim(number, row.token)
            is_rescuable = row.state == "running" and live not in rescues
            if is_rescuable and state.rescues < self.scope.rescues:
                counted = state._replace(rescues=state.rescues + 1)
                yield from self._proceed(counted, Transaction("rescue", live))
        for claim in dict.fromkeys(state.runs):
            finish = Transaction("finish", claim)
            runs = tuple(run for run in state.runs if run != claim)
            yield from self._proceed(state._replace(runs=runs), finish)
            if state.resends < self.scope.resends:
                # The run stays where it is: it gets no answer and will send its finish again.
                yield from self._proceed(state._replace(resends=state.resends + 1), finish)

    def _proceed(self, state: LimitState, transaction: Transaction) -> LimitSteps:
        """Give the next statement of a transaction; the state is without it."""

        def then(label: str, after: Transaction) -> Step[LimitState]:
            under_way = _added(state.under_way, after)
            return Step(f"{transaction} {label}", state._replace(under_way=under_way))

        is_taker = transaction.verb in TAKERS
        number = transaction.claim.job
        is_handed = transaction.verb == "hand-over"
        reads_first = is_handed and self.design.hands_over == "before the lock"
        if (self.design.reads == "with the lock" or reads_first) and transaction.read == UNREAD:
            count = self._read(state, transaction)
            yield then("begins, its snapshot taken", transaction._replace(read=count))
            return
        is_job_first = self.design.finish_order == "job, then gate" and transaction.verb == "finish"
        if is_job_first and not transaction.has_job:
            if not _is_job_locked(state.under_way, number):
                yield then("locks the job", transaction._replace(has_job=True))
            return
        locks = self.design.locks == "all" or (self.design.locks == "takers" and is_taker)
        locks = locks and not (is_handed and self.design.hands_over == "without a lock")
        if locks and not transaction.has_gate and self.scope.removes:
            yield from self._lock_row(state, transaction)
            return
        if locks and not transaction.has_gate:
            is_sharing = self.design.ends == "beside a claim" and transaction.verb in (*TAKERS, "finish")
            if not _is_gate_locked(state.under_way, transaction if is_sharing else None):
                yield then("locks the gate", transaction._replace(has_gate=True, is_sharing=is_sharing))
            return
        if transaction.read == UNREAD:
            count = self._read(state, transaction)
            if is_taker:
                found = f"counts {count} permit(s)"
            else:
                found = f"finds job {count} waiting" if count else "finds no job waiting"
            yield then(found, transaction._replace(read=count))
            return
        is_closed = is_taker and transaction.read >= self.scope.limit
        if is_closed and is_handed:
            return  # it has left it ready
        if is_closed and transaction.is_sharing and self.design.blocks != "beside ends":
            if not _is_gate_locked(state.under_way):
                counted = self.design.blocks == "alone"
                after = transaction._replace(
                    is_sharing=False,
                    before=transaction.read,
                    read=transaction.read if counted else UNREAD,
                )
                yield then("has waited for the ends beside it", after)
            return
        if is_taker and transaction.before not in (UNREAD, transaction.read):
            yield Step(f"{transaction} leaves it ready", state)
            return
        # A claim passes over a locked row, the others wait for it.
        if is_taker:
            yield self._take(state, transaction)
        elif not _is_job_locked(state.under_way, number):
            yield self._return(state, transaction)

    def _lock_row(self, state: LimitState, transaction: Transaction) -> LimitSteps:
        """Lock the gate's row. It may be missing, and the transaction that has it may remove it."""

        def then(label: str, state: LimitState, after: Transaction) -> Step[LimitState]:
            under_way = _added(state.under_way, after)
            return Step(f"{transaction} {label}", state._replace(under_way=under_way))

        row = transaction.row
        if row and any(other.has_gate and other.row == row for other in state.under_way):
            return
        if row and row == state.row:
            yield then("locks the gate", state, transaction._replace(has_gate=True))
        elif row:
            is_on = self.design.when_gone == "goes on"
            after = transaction._replace(row=row if is_on else 0, has_gate=is_on)
            yield then("finds the gate's row gone", state, after)
        elif state.row:
            yield then("finds the gate's row", state, transaction._replace(row=state.row))
        else:
            made = state._replace(row=state.made + 1, made=state.made + 1)
            yield then("makes the gate's row", made, transaction._replace(row=made.row, has_gate=True))

    def _read(self, state: LimitState, transaction: Transaction) -> int:
        """Count the permits to take one; to return one, find the waiting job (0: none)."""
        if transaction.verb == "hand-over" and any(row.state == "blocked" for row in state.jobs):
            return self.scope.limit  # it does not go before a job that waits
        if transaction.verb in TAKERS:
            return len(state.permits)
        waiting = [n for n, row in enumerate(state.jobs) if row.state == "blocked"]
        return waiting[0] + 1 if waiting else 0

    def _take(self, state: LimitState, transaction: Transaction) -> Step[LimitState]:
        claim = transaction.claim
        row = state.jobs[claim.job]
        before = "unstored" if transaction.verb == "hand-over" else "ready"
        if row.state != before or row.token + 1 != claim.token:
            return Step(f"{transaction} finds it gone", state)
        if transaction.read >= self.scope.limit:
            blocked = _changed(state.jobs, claim.job, row._replace(state="blocked"))
            return Step(f"{transaction} leaves it blocked", state._replace(jobs=blocked))
        taken = row._replace(state="running", token=claim.token)
        return Step(
            f"{transaction} takes it with a permit",
            state._replace(
                jobs=_changed(state.jobs, claim.job, taken),
                permits=tuple(sorted((*state.permits, claim))),
                runs=tuple(sorted((*state.runs, claim))),
            ),
        )

    def _return(self, state: LimitState, transaction: Transaction) -> Step[LimitState]:
        claim = transaction.claim
        row = state.jobs[claim.job]
        took = row.runs_under(claim)
        if not took and self.design.permit_ends == "with its claim":
            return Step(f"{transaction} is refused", state)
        jobs = state.jobs
        permits = state.permits
        if took:
            label = f"{transaction} takes effect"
            ended = "completed" if transaction.verb == "finish" else "ready"
            jobs = _changed(jobs, claim.job, row._replace(state=ended))
            permits = tuple(permit for permit in permits if permit != claim)
        else:
            label = f"{transaction} is refused, but returns the permit of the job"
            permits = tuple(permit for permit in permits if permit.job != claim.job)
        opened = transaction.read - 1
        if opened >= 0 and jobs[opened].state == "blocked":
            jobs = _changed(jobs, opened, jobs[opened]._replace(state="ready"))
            label += f" and opens the gate for job {opened + 1}"
        is_idle = not permits and all(job.state != "blocked" for job in jobs)
        left = 0 if is_idle and state.row == transaction.row else state.row
        return Step(label, state._replace(jobs=jobs, permits=permits, row=left))


# -- the callback of a batch -----------------------------------------------------------------------


@dataclass(frozen=True)
class BatchDesign:
    """The defaults are the protocol."""

    locks_gate: bool = True  # without: each finisher counts rows, and there is no number to lock
    # When the members are counted. Its own row must be locked by then: an addition holds a
    # lock on the row of the member that adds.
    recounts: Literal["after its own write", "before its own write", "with the lock"] = (
        "after its own write"
    )
    # At zero: count the members and keep what was counted, count without keeping it, do not count.
    at_zero: Literal["recount and keep", "recount", "trust"] = "recount and keep"
    fires: Literal["once", "whenever complete"] = "once"
    growth_locks_member: bool = True


@dataclass(frozen=True)
class BatchScope:
    name: str
    members: int = 2
    growths: int = 0
    rescues: int = 0
    rescue_limit: int = 2
    cancels: int = 0
    retries: int = 0
    restarts: int = 0


class BatchState(NamedTuple):
    members: Rows
    remaining: int
    has_fired: bool = False
    callbacks: int = 0  # jobs created, in all
    runs: tuple[Claim, ...] = ()
    under_way: Transactions = ()
    growths: int = 0
    rescues: int = 0
    cancels: int = 0
    retries: int = 0
    restarts: int = 0


BatchSteps = Iterator[Step[BatchState]]

TARGETS = {"finish": "completed", "last rescue": "dead", "cancel": "cancelled", "retry": "ready"}


class BatchModel:
    """Members that finish, die, are cancelled, brought back, or add another member."""

    def __init__(self, design: BatchDesign, scope: BatchScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> BatchState:
        return BatchState(members=(Row(),) * self.scope.members, remaining=self.scope.members)

    def is_settled(self, state: BatchState) -> bool:
        return state.callbacks > 0 and all(row.state in FINAL for row in state.members)

    def breaches(self, state: BatchState) -> tuple[Rule, ...]:
        found = [Rule.TWICE] if state.callbacks > 1 else []
        # A member that an operator brings back afterwards had been final when the callback fired.
        is_open = any(row.state not in FINAL and not row.is_late for row in state.members)
        if state.callbacks and is_open:
            found.append(Rule.EARLY)
        return tuple(found)

    def describe(self, state: BatchState) -> str:
        words = ", ".join(f"job {n + 1} {row.state}" for n, row in enumerate(state.members))
        remaining = f"; remaining {state.remaining}" if self.design.locks_gate else ""
        return f"{words}{remaining}; callbacks: {state.callbacks}"

    def steps(self, state: BatchState) -> BatchSteps:
        yield from self._workers(state)
        yield from self._others(state)
        for transaction in dict.fromkeys(state.under_way):
            others = state._replace(under_way=_removed(state.under_way, transaction))
            if transaction.verb == "growth":
                # The gate's row is left alone: a producer must not wait for it.
                added = Row(is_late=state.members[transaction.claim.job].is_late)
                yield Step(
                    f"the member that {transaction.claim} adds is committed",
                    others._replace(members=(*state.members, added)),
                )
            else:
                yield from self._proceed(others, transaction)
        if state.restarts < self.scope.restarts and state.under_way:
            unanswered = [t.claim for t in state.under_way if t.verb == "finish"]
            yield Step(
                "the store restarts; transactions under way roll back",
                state._replace(
                    under_way=(),
                    runs=tuple(sorted((*state.runs, *unanswered))),
                    restarts=state.restarts + 1,
                ),
                is_help=True,
            )

    def _workers(self, state: BatchState) -> BatchSteps:
        for number, row in enumerate(state.members):
            if row.state == "ready" and not _is_job_locked(state.under_way, number):
                claim = Claim(number, row.token + 1)
                running = row._replace(state="running", token=claim.token)
                yield Step(
                    f"a worker claims {claim}",
                    state._replace(
                        members=_changed(state.members, number, running),
                        runs=tuple(sorted((*state.runs, claim))),
                    ),
                )
        for claim in dict.fromkeys(state.runs):
            runs = tuple(run for run in state.runs if run != claim)
            yield from self._proceed(state._replace(runs=runs), Transaction("finish", claim))
            is_free = not _is_job_locked(state.under_way, claim.job)
            is_live = state.members[claim.job].runs_under(claim)
            if state.growths < self.scope.growths and is_live and is_free:
                growth = Transaction("growth", claim, has_job=self.design.growth_locks_member)
                yield Step(
                    f"{claim} is found running and adds a member (not committed yet)",
                    state._replace(growths=state.growths + 1, under_way=_added(state.under_way, growth)),
                )

    def _others(self, state: BatchState) -> BatchSteps:
        for number, row in enumerate(state.members):
            claim = Claim(number, row.token)
            if row.state == "running" and state.rescues < self.scope.rescues:
                counted = state._replace(rescues=state.rescues + 1)
                if counted.rescues >= self.scope.rescue_limit:
                    yield from self._proceed(counted, Transaction("last rescue", claim))
                elif not _is_job_locked(state.under_way, number):
                    back = _changed(state.members, number, row._replace(state="ready"))
                    yield Step(f"{claim} is rescued", counted._replace(members=back))
            if row.state == "ready" and state.cancels < self.scope.cancels:
                asked = state._replace(cancels=state.cancels + 1)
                for step in self._proceed(asked, Transaction("cancel", claim)):
                    yield step._replace(is_help=True)
            if row.state in FINAL and state.retries < self.scope.retries:
                asked = state._replace(retries=state.retries + 1)
                for step in self._proceed(asked, Transaction("retry", claim)):
                    yield step._replace(is_help=True)

    def _proceed(self, state: BatchState, transaction: Transaction) -> BatchSteps:
        """Give the next statement of a transaction; the state is without it."""

        def then(label: str, after: Transaction) -> Step[BatchState]:
            under_way = _added(state.under_way, after)
            return Step(f"{transaction} {label}", state._replace(under_way=under_way))

        count = self._unfinished(state, transaction.claim.job)
        is_unread = transaction.read == UNREAD
        if self.design.recounts == "with the lock" and is_unread:
            yield then("begins, its snapshot taken", transaction._replace(read=count))
        elif self.design.locks_gate and not transaction.has_gate:
            if not _is_gate_locked(state.under_way):
                yield then("locks the gate", transaction._replace(has_gate=True))
        elif self.design.recounts == "before its own write" and is_unread:
            yield then(f"sees {count} other(s) unfinished", transaction._replace(read=count))
        elif not transaction.has_job:
            if _is_job_locked(state.under_way, transaction.claim.job):
                return
            if not self._matches(state, transaction):
                yield Step(f"{transaction} is refused", state)
            else:
                written = f"writes {TARGETS[transaction.verb]} (not committed yet)"
                yield then(written, transaction._replace(has_job=True))
        elif is_unread:
            yield then(f"sees {count} other(s) unfinished", transaction._replace(read=count))
        else:
            yield self._commit(state, transaction)

    def _unfinished(self, state: BatchState, but: int) -> int:
        """Count the members that are not final, as committed, besides the one being written."""
        return sum(row.state not in FINAL for n, row in enumerate(state.members) if n != but)

    def _matches(self, state: BatchState, transaction: Transaction) -> bool:
        row = state.members[transaction.claim.job]
        match transaction.verb:
            case "cancel":
                return row.state == "ready"
            case "retry":
                return row.state in FINAL
            case _:
                return row.runs_under(transaction.claim)

    def _commit(self, state: BatchState, transaction: Transaction) -> Step[BatchState]:
        number = transaction.claim.job
        is_retry = transaction.verb == "retry"
        row = state.members[number]._replace(
            state=TARGETS[transaction.verb], is_late=is_retry and state.has_fired
        )
        after = state._replace(
            members=_changed(state.members, number, row),
            remaining=state.remaining + (1 if is_retry else -1),
        )
        if is_retry:
            return Step(f"{transaction} commits", after)
        if self._is_complete(after, transaction.read):
            fired = after._replace(has_fired=True, callbacks=after.callbacks + 1)
            return Step(f"{transaction} commits and creates the callback", fired)
        if after.remaining == 0 and self.design.at_zero == "recount and keep":
            after = after._replace(remaining=transaction.read)
        return Step(f"{transaction} commits", after)

    def _is_complete(self, after: BatchState, count: int) -> bool:
        if after.has_fired and self.design.fires == "once":
            return False
        if not self.design.locks_gate:
            return count == 0
        if after.remaining != 0:
            return False
        return self.design.at_zero == "trust" or count == 0
