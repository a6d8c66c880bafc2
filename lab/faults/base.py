"""What a fault is: a name, the stores that have it, something done at random times, and proof of it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from lab.history import History, Verdict, Violation
from lab.hooked import on_path
from lab.results import Result
from lab.run import TAKEOVER, Run
from lab.stores import STORES, Store

SQL = ("sqlite", "postgres")
SINGLE = ("sqlite", "postgres", "redis")
ALL = ("sqlite", "postgres", "redis", "redis+cluster")


class Fault:
    """One fault in one run. Subclasses define `strike`, and how the run proves that it happened."""

    name: ClassVar[str]
    title: ClassVar[str]
    stores: ClassVar[Sequence[str]] = SINGLE
    own_stores: ClassVar[Mapping[str, type[Store]]] = {}
    # With such a store others can do their work as well.
    shares_own_store: ClassVar[bool] = False
    needs_proxy: ClassVar[bool] = False
    # It is lived through in virtual time and needs no processes: `play` is the whole run.
    is_virtual: ClassVar[bool] = False
    # Between two strikes, at random.
    every: ClassVar[tuple[float, float]] = (3.0, 6.0)
    # From the end of a lease to the rescue. None: no process was able to sweep all the time.
    takeover: ClassVar[timedelta | None] = TAKEOVER

    def __init__(self, run: Run, rng: random.Random) -> None:
        self.run = run
        self.rng = rng
        self.strikes = 0

    @classmethod
    def play(cls, seed: int) -> Result:
        raise NotImplementedError

    @classmethod
    def store_class(cls, store: str) -> type[Store]:
        return cls.own_stores.get(store) or STORES[store]

    # -- the course of a run -----------------------------------------------------------------------

    def hook(self, **env: str) -> None:
        """Let workers that start from now on meet `lab/hooked.py`."""
        self.run.worker_env |= {"PYTHONPATH": on_path(), **env}

    def prepare(self) -> None:
        """Before any worker starts."""

    def begin(self) -> None:
        """When the workers are ready and the producers have begun."""

    def strike(self) -> None:
        """Do it once."""

    def heal(self) -> None:
        """Undo what lasts; afterwards the fleet is brought back to its size."""

    def healed(self) -> None:
        """When the producers have ended."""

    def drained(self) -> None:
        """When every job is final and the workers still run."""

    # -- the verdict -------------------------------------------------------------------------------

    def waives(self, store: str) -> Sequence[str]:
        """The invariants that are not promised under this fault on this store."""
        return ()

    def observed(self, history: History, verdict: Verdict) -> str:
        """What shows that it did something; nothing at all when it did not."""
        raise NotImplementedError

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        """What this fault must not bring about, beyond the invariants."""
        return []
