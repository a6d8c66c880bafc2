"""Gates are not built here yet: whatever asks for them is refused; nothing runs as if it had none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from winch.core.errors import ConfigError
from winch.core.gates import GateSpec, is_gated
from winch.drivers.redis.bodies import Body, Verbs
from winch.storage.params import LimitInfo, NewJob, Promoted
from winch.storage.verbs import Verb

REFUSAL = (
    "limit, rate, fifo, tenant, breaker and scope are not available on Redis in this release; nothing "
    "was stored. Use a sqlite:/// or postgresql:// URL, or leave the option out"
)


def refuse_gates(jobs: Iterable[NewJob]) -> None:
    for job in jobs:
        if job.options is not None and is_gated(job.options):
            raise ConfigError(REFUSAL)


class GateVerbs(Verbs):
    """What the protocol asks for, for a store where no job waits at a gate."""

    def admit(
        self, *, limit: int = 1000, is_sweep: bool = False, now: datetime | None = None
    ) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            yield from ()
            return Promoted(0, None, now or datetime.now(UTC))

        return self._write("admit", body)

    def set_limits(
        self,
        specs: Mapping[str, GateSpec | None],
        *,
        by: str,
        is_live: bool = True,
        now: datetime | None = None,
    ) -> Verb[None]:
        raise ConfigError(REFUSAL)

    def limits(self) -> Verb[list[LimitInfo]]:
        def body() -> Body[list[LimitInfo]]:
            yield from ()
            return []

        return self._read("limits", body)

    def has_gated(self, queues: Sequence[str]) -> Verb[bool]:
        def body() -> Body[bool]:
            yield from ()
            return False

        return self._read("has_gated", body)
