"""Claims by the hundred on PostgreSQL: what they leave out of the rows, and how it is found again.

Such a claim leaves its jobs filed as ready, where the index of ready jobs has them, and writes one row,
the lease, that names them all. A read of live claims finds a job that is filed as running, or one
that is named by the lease of its token. The finish goes to the places of the rows that the claim gave,
and counts the lease down; `rescue` removes leases, and files what runs for long.

A place belongs to one row at a time. Every write moves a row to another place, and a place that was left
may be taken by any other row, also by that of a new job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step

FREE = 0  # no token


@dataclass(frozen=True)
class LeaseDesign:
    """The defaults are the protocol."""

    # What a claim takes: rows that are ready, or all that the index of ready jobs has.
    takes: Literal["ready", "filed as ready"] = "ready"
    # What a finish compares at its place: the job and the token, or nothing.
    at_the_place: Literal["job and token", "nothing"] = "job and token"
    # When a finish counts the lease down: where the whole call took, or always.
    counts_down: Literal["whole call", "every call"] = "whole call"
    # When a lease may go although its count is above zero: no job runs, or it is old.
    removes: Literal["nothing runs", "old"] = "nothing runs"
    # Whether a row is filed as running by the token it has under the lock, or as it was read before.
    files: Literal["under the lock", "as read"] = "under the lock"
    # Whether the live claims are those filed as running and those named by leases, or only the first.
    finds: Literal["both", "filed as running"] = "both"


@dataclass(frozen=True)
class LeaseScope:
    name: str
    jobs: int = 2
    claims: int = 2
    writes: int = 1  # to rows that run: progress, a request to cancel
    resends: int = 1
    deaths: int = 1
    new: int = 0  # jobs that are enqueued later


class Row(NamedTuple):
    state: str = "ready"
    filed: str = "ready"
    token: int = FREE
    place: int = 0


class Lease(NamedTuple):
    token: int
    unended: int
    jobs: tuple[int, ...]


class Finish(NamedTuple):
    """A finish on its way: first to the places, then by id for what was not there."""

    token: int
    places: tuple[tuple[int, int], ...]
    is_second: bool = False


class LeaseState(NamedTuple):
    rows: tuple[Row | None, ...]  # None: final, or not there yet
    new: int  # how many of the last ones are not there yet
    leases: tuple[Lease, ...] = ()
    held: tuple[
        tuple[tuple[int, int], ...], ...
    ] = ()  # by claim: jobs and places, as its worker got them
    dead: tuple[int, ...] = ()
    sent: tuple[Finish, ...] = ()
    filing: tuple[tuple[int, int], ...] = ()  # jobs and tokens that a sweep is about to file
    writes: int = 0
    resends: int = 0

    def with_row(self, job: int, row: Row | None) -> LeaseState:
        return self._replace(rows=(*self.rows[:job], row, *self.rows[job + 1 :]))

    def free_place(self) -> int:
        taken = {row.place for row in self.rows if row is not None}
        return next(place for place in range(len(self.rows) + 1) if place not in taken)


Steps = Iterator[Step[LeaseState]]


class LeaseModel:
    """A few jobs, claimed together or alone."""

    def __init__(self, design: LeaseDesign, scope: LeaseScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> LeaseState:
        rows = [
            Row(place=n) if n < self.scope.jobs else None
            for n in range(self.scope.jobs + self.scope.new)
        ]
        return LeaseState(rows=tuple(rows), new=self.scope.new)

    def is_settled(self, state: LeaseState) -> bool:
        return not state.new and not any(state.rows) and not state.leases

    def breaches(self, state: LeaseState) -> tuple[Rule, ...]:
        return ()

    def describe(self, state: LeaseState) -> str:
        words = []
        for job, row in enumerate(state.rows):
            if row is not None:
                under = f" under {row.token}" if row.token else ""
                words.append(f"job {job + 1} {row.state}{under}, filed {row.filed}, at {row.place}")
        words += [f"lease {lease.token}: {lease.unended} of {len(lease.jobs)}" for lease in state.leases]
        return "; ".join([*words, *(f"worker {token} dead" for token in state.dead)]) or "nothing left"

    def steps(self, state: LeaseState) -> Steps:
        yield from self._claims(state)
        for token, places in enumerate(state.held, 1):
            if places and token not in state.dead:
                yield from self._sends(state, token, places)
                if len(state.dead) < self.scope.deaths:
                    died = state._replace(dead=(*state.dead, token))
                    yield Step(f"worker {token} dies", died, is_help=True)
        for finish in dict.fromkeys(state.sent):
            yield from self._applied(state, finish)
        yield from self._rescued(state)
        yield from self._others(state)

    # -- claims ------------------------------------------------------------------------------------

    def _claims(self, state: LeaseState) -> Steps:
        is_all = self.design.takes == "filed as ready"
        free = [
            job
            for job, row in enumerate(state.rows)
            if row is not None and row.filed == "ready" and (is_all or row.state == "ready")
        ]
        if not free:
            return
        if len(state.held) >= self.scope.claims:
            # Fresh workers from outside of the scope see the rest through.
            first = state.rows[free[0]]
            if first is not None and first.state == "ready":
                yield Step("another worker runs a job", state.with_row(free[0], None))
            return
        token = len(state.held) + 1
        for chosen, is_batch in [(free, True), (free[:1], False)]:
            after, places = state, []
            doubled = any(row is not None and row.token for row in (state.rows[job] for job in chosen))
            for job in chosen:
                row = Row("running", "ready" if is_batch else "running", token, after.free_place())
                after = after.with_row(job, row)
                places.append((job, row.place))
            leases = (
                (*after.leases, Lease(token, len(chosen), tuple(chosen))) if is_batch else after.leases
            )
            after = after._replace(held=(*after.held, tuple(places)), leases=leases)
            what = f"{len(chosen)} jobs with a lease" if is_batch else "one job"
            yield Step(
                f"worker {token} claims {what}", after, breaches=(Rule.ONE_CLAIM,) if doubled else ()
            )

    # -- finishes ----------------------------------------------------------------------------------

    def _sends(self, state: LeaseState, token: int, places: tuple[tuple[int, int], ...]) -> Steps:
        waiting = [finish for finish in state.sent if finish.token == token]
        if not waiting:
            for some in dict.fromkeys([places, places[:1]]):
                sent = (*state.sent, Finish(token, some))
                yield Step(f"worker {token} finishes {len(some)}", state._replace(sent=_sorted(sent)))
        elif state.resends < self.scope.resends and len(waiting) == 1:
            # The answer did not come in time; the first may be applied later, or never.
            sent = (*state.sent, waiting[0]._replace(is_second=False))
            again = state._replace(sent=_sorted(sent), resends=state.resends + 1)
            yield Step(f"worker {token} finishes the same again", again)

    def _applied(self, state: LeaseState, finish: Finish) -> Steps:
        at = state.sent.index(finish)
        rest = state._replace(sent=state.sent[:at] + state.sent[at + 1 :])
        jobs = [job for job, _ in finish.places]
        if finish.is_second:
            yield self._by_id(rest, finish)
            return
        after, ended = rest, []
        breaches: tuple[Rule, ...] = ()
        for job, place in finish.places:
            found = next(
                (n for n, r in enumerate(rest.rows) if r is not None and r.place == place), None
            )
            row = None if found is None else rest.rows[found]
            if row is None or found is None:
                continue
            is_it = found == job and row.token == finish.token
            if is_it or self.design.at_the_place == "nothing":
                after = after.with_row(found, None)
                ended.append(job)
                breaches = breaches if is_it else (Rule.FOREIGN_RUN,)
        if len(ended) == len(jobs) or self.design.counts_down == "every call":
            after = _counted_down(after, finish.token, len(jobs))
        if len(ended) == len(jobs):
            yield Step(
                f"a finish of worker {finish.token} took",
                _let_go(after, finish.token, jobs),
                breaches=breaches,
            )
        else:
            left = tuple(pair for pair in finish.places if pair[0] not in ended)
            sent = _sorted((*after.sent, Finish(finish.token, left, is_second=True)))
            after = _let_go(after._replace(sent=sent), finish.token, ended)
            yield Step(f"a finish of worker {finish.token} took in part", after, breaches=breaches)

    def _by_id(self, state: LeaseState, finish: Finish) -> Step[LeaseState]:
        """What was not at its place: it is live under the token after all, or the claim is lost."""
        after = state
        jobs = [job for job, _ in finish.places]
        for job in jobs:
            row = after.rows[job]
            if row is not None and row.token == finish.token:
                after = after.with_row(job, None)
        label = f"what worker {finish.token} finished is looked up by id"
        return Step(label, _let_go(after, finish.token, jobs))

    # -- rescue ------------------------------------------------------------------------------------

    def _live_claims(self, state: LeaseState) -> list[int]:
        """The view `claimed`."""
        found = []
        for job, row in enumerate(state.rows):
            if row is None or row.state != "running":
                continue
            named = any(lease.token == row.token and job in lease.jobs for lease in state.leases)
            if row.filed == "running" or (named and self.design.finds == "both"):
                found.append(job)
        return found

    def _rescued(self, state: LeaseState) -> Steps:
        for job in self._live_claims(state):
            row = state.rows[job]
            if row is not None and row.token in state.dead:
                back = state.with_row(job, Row(place=state.free_place()))
                yield Step("a job of a dead worker is rescued", back)
        for lease in state.leases:
            rows = [state.rows[job] for job in lease.jobs]
            runs = any(r is not None and r.token == lease.token and r.filed == "ready" for r in rows)
            if lease.unended <= 0 or not runs or self.design.removes == "old":
                others = tuple(other for other in state.leases if other != lease)
                yield Step("a lease is removed", state._replace(leases=others))
            elif not state.filing and lease.token not in state.dead:
                chosen = [
                    (job, lease.token)
                    for job, row in zip(lease.jobs, rows, strict=True)
                    if row is not None and row.token == lease.token and row.filed == "ready"
                ]
                yield Step("a sweep looks for long runs", state._replace(filing=tuple(chosen)))
        if state.filing:
            after = state._replace(filing=())
            for job, token in state.filing:
                row = after.rows[job]
                if row is None:
                    continue
                is_it = row.token == token and row.filed == "ready"
                if is_it or self.design.files == "as read":
                    after = after.with_row(job, row._replace(filed="running", place=after.free_place()))
            yield Step("what runs long is filed as running", after)

    # -- others ------------------------------------------------------------------------------------

    def _others(self, state: LeaseState) -> Steps:
        if state.writes < self.scope.writes:
            for job, row in enumerate(state.rows):
                if row is not None and row.state == "running":
                    moved = state.with_row(job, row._replace(place=state.free_place()))
                    yield Step("progress is noted", moved._replace(writes=state.writes + 1))
        if state.new:
            job = len(state.rows) - state.new
            stored = state.with_row(job, Row(place=state.free_place()))
            yield Step("a job is enqueued", stored._replace(new=state.new - 1))


def _counted_down(state: LeaseState, token: int, number: int) -> LeaseState:
    return state._replace(
        leases=tuple(
            lease._replace(unended=lease.unended - number) if lease.token == token else lease
            for lease in state.leases
        )
    )


def _let_go(state: LeaseState, token: int, jobs: list[int]) -> LeaseState:
    """The worker has the answers to the ends of these."""
    held = list(state.held)
    held[token - 1] = tuple(pair for pair in held[token - 1] if pair[0] not in jobs)
    return state._replace(held=tuple(held))


def _sorted(sent: tuple[Finish, ...]) -> tuple[Finish, ...]:
    return tuple(sorted(sent))
