"""Faults between clients and the server, made by a proxy: lost replies, silence, slowness."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from lab.faults.base import Fault
from lab.history import History, Verdict, Violation
from lab.history.lines import Nemesis
from lab.judge import named, work_goes_on
from lab.proxy import Proxy
from tests.faults.apps import LEASE

# How each verb's own statement is known on the wire.
STATEMENTS = {
    "enqueue": r"insert into \S+\.job\b",
    "claim": r"update \S+\.job\s+set state = 'running'",
    "finish": r"delete from \S+\.job\s+where ctid",
    "transaction": r"insert into effect",
}


class NetworkFault(Fault):
    stores: ClassVar[Sequence[str]] = ("postgres",)
    needs_proxy = True

    @property
    def proxy(self) -> Proxy:
        assert self.run.store.proxy is not None
        return self.run.store.proxy


class LostReply(NetworkFault):
    name = "F8"
    title = "the reply to a COMMIT is lost: enqueue, claim, finish, ctx.transaction"
    every = (0.2, 0.6)

    def strike(self) -> None:
        self.proxy.cut_after_request(STATEMENTS[self.rng.choice(list(STATEMENTS))])

    def heal(self) -> None:
        self.proxy.heal()
        self.run.recorder.nemesis("cut", count=self.proxy.counters["swallowed"])

    def observed(self, history: History, verdict: Verdict) -> str:
        count = self.proxy.counters["swallowed"]
        return (
            f"{count} replies lost, {named(verdict, 'already')} repeats answered already"
            if count
            else ""
        )

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        # If the server itself dies too, some transactions are never committed: these do fail.
        harm = [line for line in history.lines if isinstance(line, Nemesis)]
        if any(line.action == "outage" or (line.action == "cut" and line.note) for line in harm):
            return []
        return [
            Violation("I14", job.id, "a lost reply was counted as a failure")
            for job in history.jobs
            if job.task != "fail_then_ok" and any(entry.what == "failed" for entry in job.history)
        ]


class Silence(NetworkFault):
    name = "F9"
    title = "a half-open network: all packets are dropped without an error, for two leases"
    stores = ("postgres", "redis")
    every = (1.0, 2.0)
    takeover = None

    def begin(self) -> None:
        self.times = 0

    def strike(self) -> None:
        with self.proxy.stall():
            time.sleep(2 * LEASE)
        self.times += 1
        self.run.recorder.nemesis("outage", note="stalled")
        took = work_goes_on(self.run, time.monotonic())
        self.run.measures["work went on after s"] = round(took, 2)

    def observed(self, history: History, verdict: Verdict) -> str:
        return f"silent {self.times} times for {2 * LEASE:g} s" if self.times else ""


class Slow(NetworkFault):
    name = "F19"
    title = "a slow network: 200 ms each way, and spikes"
    stores = ("postgres", "redis")
    every = (0.1, 0.3)

    def begin(self) -> None:
        self.times = 0

    def strike(self) -> None:
        delay = self.rng.choice([0.1, 0.1, 0.1, 0.4])
        with self.proxy.delay(delay):
            self.run.pause(0.5, 1.5, self.rng)
        self.times += 1

    def observed(self, history: History, verdict: Verdict) -> str:
        return f"delayed {self.times} times" if self.times else ""

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        if named(verdict, "rescued"):
            return [
                Violation(
                    "alive", None, f"{named(verdict, 'rescued')} jobs lost their lease to slowness"
                )
            ]
        return []
