"""The hand-over: a job moves from its shard to home as it runs or waits, through any failure of either.

Three scripts, each atomic in its part: `depart` takes the job out of the shard and keeps all of it as a
message; `arrive` makes it at home what it was in the shard, once; `forget` removes the message. A
process that finds the message goes on. Each part has a replica that follows, and a failover sets the
part back to what the replica has. A worker holds the job's claim all the while and sends its finish at
any moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step


@dataclass(frozen=True)
class MoveDesign:
    """The defaults are the protocol of a store that replicates."""

    # When the shard lets go of the message.
    forgets: Literal["when confirmed", "when sent"] = "when confirmed"
    # What is on the replica before the next step is made.
    waits_for: Literal["both", "shard", "home", "neither"] = "both"
    # Whether the job is out of the shard while its message is there.
    departs: Literal["moves", "copies"] = "moves"
    # How home knows a message that it has seen.
    applies: Literal["once", "while the job is there", "always"] = "once"
    # Whether the claim moves with the job.
    keeps_claim: bool = True
    # Where a finish looks that finds no job: at the message too, or only in the two parts.
    finish_looks: Literal["everywhere", "in both parts"] = "everywhere"


@dataclass(frozen=True)
class MoveScope:
    name: str
    movers: int = 2
    deaths: int = 1
    shard_failovers: int = 0
    home_failovers: int = 0
    # Whether the job waits, so that a claim runs it where it is then.
    is_waiting: bool = False


class MoveState(NamedTuple):
    shard: str = "there"  # there, leaving, gone; done
    home: str = "absent"  # absent, running, ready; done, removed
    shard_replica: str = "there"
    home_replica: str = "absent"
    movers: tuple[str, ...] = ()  # idle, departed, sent, arrived
    on_its_way: int = 0  # messages to home
    worker: str = "runs"  # runs, asks home, looks again, asks home again; took, lost, dead, none
    deaths: int = 0
    shard_failovers: int = 0
    home_failovers: int = 0


Steps = Iterator[Step[MoveState]]
LIVE_AT_HOME = ("running", "ready")
ENDED = ("done", "removed")


class MoveModel:
    def __init__(self, design: MoveDesign, scope: MoveScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> MoveState:
        worker = "none" if self.scope.is_waiting else "runs"
        return MoveState(movers=("idle",) * self.scope.movers, worker=worker)

    def is_settled(self, state: MoveState) -> bool:
        return (
            (state.home in ENDED or state.shard == "done")
            and state.shard not in ("there", "leaving")
            and not state.on_its_way
        )

    def breaches(self, state: MoveState) -> tuple[Rule, ...]:
        if state.shard == "there" and state.home in LIVE_AT_HOME:
            return (Rule.ONE_CLAIM,)
        return ()

    def describe(self, state: MoveState) -> str:
        return (
            f"shard {state.shard} ({state.shard_replica}), home {state.home} ({state.home_replica}), "
            f"worker {state.worker}, movers {', '.join(state.movers)}, {state.on_its_way} on the way"
        )

    def steps(self, state: MoveState) -> Steps:
        for number, mover in enumerate(state.movers):
            if (
                mover not in state.movers[:number]
            ):  # which of several equal ones goes on makes no difference
                yield from self._move(state, number, mover)
        if state.on_its_way:
            yield from self._land(state)
        yield from self._finish(state)
        yield from self._replicas(state)
        yield from self._others(state)

    # -- movers ------------------------------------------------------------------------------------

    def _move(self, state: MoveState, number: int, mover: str) -> Steps:
        if mover == "idle":
            if state.shard == "there":
                shard = "leaving" if self.design.departs == "moves" else "there"
                yield Step("the job departs", self._as(state, number, "departed")._replace(shard=shard))
            elif state.shard == "leaving":
                yield Step("a process finds the message", self._as(state, number, "departed"))
            return
        if state.deaths < self.scope.deaths:
            dead = self._as(state, number, "idle")
            yield Step("a mover dies, or its reply is lost", dead._replace(deaths=state.deaths + 1))
        if (
            mover == "sent"
            or (mover == "departed" and state.shard == "there")
            or (mover == "arrived" and state.home == "absent")
        ):
            yield Step("a mover gets no answer and begins again", self._as(state, number, "idle"))
        if mover == "departed" and self._is_safe_in_shard(state):
            sent = self._as(state, number, "sent")._replace(on_its_way=min(state.on_its_way + 1, 2))
            if self.design.forgets == "when sent":
                sent = sent._replace(shard="gone")
            yield Step("the message is sent home", sent)
        elif mover == "arrived" and self._is_safe_at_home(state):
            shard = "gone" if state.shard == "leaving" else state.shard
            yield Step("the shard forgets", self._as(state, number, "idle")._replace(shard=shard))

    def _is_safe_in_shard(self, state: MoveState) -> bool:
        if self.design.departs == "copies" or self.design.waits_for in ("home", "neither"):
            return True
        return state.shard_replica != "there"

    def _is_safe_at_home(self, state: MoveState) -> bool:
        return self.design.waits_for in ("shard", "neither") or state.home_replica != "absent"

    def _land(self, state: MoveState) -> Steps:
        """The message comes home, perhaps long after its sender died."""
        is_known = state.home != "absent"
        if self.design.applies == "while the job is there":
            is_known = state.home in (*LIVE_AT_HOME, "done")
        elif self.design.applies == "always":
            is_known = False
        breaches: tuple[Rule, ...] = ()
        home = state.home
        if not is_known:
            home = "running" if self.design.keeps_claim else "ready"
            if state.home in ENDED:
                breaches = (Rule.FINAL,)
        landed = state._replace(home=home, on_its_way=state.on_its_way - 1)
        movers = [n for n, mover in enumerate(state.movers) if mover == "sent"]
        if movers:
            heard = self._as(landed, movers[0], "arrived")
            yield Step("the job arrives", heard, breaches=breaches)
        yield Step("the job arrives, and the reply is lost", landed, breaches=breaches)

    @staticmethod
    def _as(state: MoveState, number: int, mover: str) -> MoveState:
        movers = (*state.movers[:number], mover, *state.movers[number + 1 :])
        return state._replace(movers=tuple(sorted(movers)))

    # -- the worker --------------------------------------------------------------------------------

    def _finish(self, state: MoveState) -> Steps:
        worker = state.worker
        if worker == "runs":
            if state.shard == "there":
                yield Step("finish takes in the shard", state._replace(worker="took", shard="done"))
            else:
                yield Step("finish finds no job in the shard", state._replace(worker="asks home"))
        elif worker in ("asks home", "asks home again"):
            if state.home == "running":
                yield Step("finish takes at home", state._replace(worker="took", home="done"))
            elif worker == "asks home" and self.design.finish_looks == "everywhere":
                yield Step("finish finds no job at home", state._replace(worker="looks again"))
            else:
                yield self._lost(state)
        elif worker == "looks again":
            if state.shard == "leaving":
                if state.home == "absent" and self._is_safe_in_shard(state):
                    # It does the mover's work itself.
                    yield Step(
                        "finish brings the job home",
                        state._replace(home="running" if self.design.keeps_claim else "ready"),
                    )
                elif state.home != "absent" and self._is_safe_at_home(state):
                    yield Step("finish looks at home again", state._replace(worker="asks home again"))
            elif state.shard == "there":
                yield Step("finish looks in the shard again", state._replace(worker="runs"))
            else:
                yield Step("the job has gone home", state._replace(worker="asks home again"))

    def _lost(self, state: MoveState) -> Step[MoveState]:
        is_live = state.home not in ENDED and state.shard != "done"
        breaches = (Rule.REFUSED,) if is_live else ()
        return Step(
            "finish gets the answer that its claim is lost",
            state._replace(worker="lost"),
            False,
            breaches,
        )

    # -- the world around --------------------------------------------------------------------------

    def _replicas(self, state: MoveState) -> Steps:
        if state.shard != state.shard_replica:
            yield Step("the shard's replica follows", state._replace(shard_replica=state.shard))
            if state.shard_failovers < self.scope.shard_failovers:
                back = state._replace(
                    shard=state.shard_replica, shard_failovers=state.shard_failovers + 1
                )
                yield Step("the shard fails over", back)
        if state.home != state.home_replica:
            yield Step("home's replica follows", state._replace(home_replica=state.home))
            if state.home_failovers < self.scope.home_failovers:
                back = state._replace(home=state.home_replica, home_failovers=state.home_failovers + 1)
                yield Step("home fails over", back)

    def _others(self, state: MoveState) -> Steps:
        """Another worker runs what its own has left, or what a failover has brought back."""
        if state.worker == "runs" and state.deaths < self.scope.deaths:
            yield Step("the worker dies", state._replace(worker="dead", deaths=state.deaths + 1))
        if state.worker in ("took", "lost", "dead", "none"):
            if state.home in LIVE_AT_HOME:
                yield Step("another runs it at home", state._replace(home="done"))
            if state.shard == "there":
                yield Step("another runs it in the shard", state._replace(shard="done"))
        if state.home == "done":
            yield Step("home prunes the job", state._replace(home="removed"))
