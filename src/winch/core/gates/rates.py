"""Rates: how much of a rate is used, and when there is room again."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import msgspec

from winch.core.gates.uses import BUCKET, FIXED, LONGEST, GateSpec, GateUse, Look, decoded_state

# A sliding window with more takes than this joins those that lie closest together.
MANY_TAKES = 256


class RateUse(ABC):
    """How much of a rate is used. A claim reads it, takes from it job by job, and writes it once."""

    def __init__(self, spec: GateSpec) -> None:
        self.spec = spec

    @abstractmethod
    def next_at(self, weight: int, now: int) -> int | None:
        """None: there is room now. Else the moment at which there is, if nothing else is taken."""

    @abstractmethod
    def take(self, weight: int, now: int) -> None:
        """Take this weight, for which there is room."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What the store keeps."""


class _FixedWindow(RateUse):
    def __init__(self, spec: GateSpec, state: dict[str, Any]) -> None:
        super().__init__(spec)
        self._from: int = state.get("from", 0)
        self._used: int = state.get("used", 0)

    def _turn(self, now: int) -> None:
        window = now // self.spec.per * self.spec.per
        if window != self._from:
            self._from, self._used = window, 0

    def next_at(self, weight: int, now: int) -> int | None:
        self._turn(now)
        return None if self._used + weight <= self.spec.n else self._from + self.spec.per

    def take(self, weight: int, now: int) -> None:
        self._turn(now)
        self._used += weight

    def state(self) -> dict[str, Any]:
        return {"from": self._from, "used": self._used}


class _Bucket(RateUse):
    def __init__(self, spec: GateSpec, state: dict[str, Any]) -> None:
        super().__init__(spec)
        self._most = spec.burst or spec.n
        self._level: float | None = state.get("level")
        self._at: int = state.get("at", 0)

    def _level_at(self, now: int) -> float:
        if self._level is None:
            return self._most
        grown = max(0, now - self._at) * self.spec.n / self.spec.per
        return float(min(self._most, self._level + grown))

    def next_at(self, weight: int, now: int) -> int | None:
        level = self._level_at(now)
        if level >= weight - 1e-6:
            return None
        wait = math.ceil((weight - level) * self.spec.per / self.spec.n)
        return now + min(max(1, wait), LONGEST)

    def take(self, weight: int, now: int) -> None:
        self._level, self._at = round(self._level_at(now) - weight, 6), now

    def state(self) -> dict[str, Any]:
        return {} if self._level is None else {"level": self._level, "at": self._at}


class _SlidingWindow(RateUse):
    """Takes are (moment, weight), oldest first; those of one moment are one."""

    def __init__(self, spec: GateSpec, state: dict[str, Any]) -> None:
        super().__init__(spec)
        self._takes: list[list[int]] = [list(take) for take in state.get("takes", ())]
        self._used = sum(weight for _, weight in self._takes)

    def _slide(self, now: int) -> None:
        gone = 0
        for moment, weight in self._takes:
            if moment + self.spec.per > now:
                break
            gone += 1
            self._used -= weight
        if gone:
            del self._takes[:gone]

    def next_at(self, weight: int, now: int) -> int | None:
        self._slide(now)
        over = self._used + weight - self.spec.n
        if over <= 0:
            return None
        for moment, taken in self._takes:
            over -= taken
            if over <= 0:
                return moment + self.spec.per
        return now + self.spec.per  # heavier than the whole rate: nothing but a change of it helps

    def take(self, weight: int, now: int) -> None:
        self._slide(now)
        self._used += weight
        takes = self._takes
        if takes and takes[-1][0] == now:
            takes[-1][1] += weight
        elif len(takes) >= MANY_TAKES and now - takes[-2][0] < self.spec.per // MANY_TAKES:
            # The last take moves to this moment, so it counts for a little longer, never shorter. The
            # one before it stays where it is, so takes cannot be put off for ever.
            takes[-1] = [now, takes[-1][1] + weight]
        else:
            takes.append([now, weight])

    def state(self) -> dict[str, Any]:
        return {"takes": self._takes}


def rate_use(look: Look, use: GateUse) -> RateUse:
    """How much of the rate of this gate is used, by the numbers that are set for it or the job's own."""
    spec = look.spec or GateSpec(use.n, use.per, use.how, use.burst)
    state = decoded_state(look.state)
    if spec.how == FIXED:
        return _FixedWindow(spec, state)
    if spec.how == BUCKET:
        return _Bucket(spec, state)
    return _SlidingWindow(spec, state)


def written(rate: RateUse) -> str:
    """The state of a rate as the store keeps it."""
    return msgspec.json.encode(rate.state()).decode()
