"""The end of a claim, as the worker has decided it."""

from __future__ import annotations

import msgspec

from winch.core.outcome import Settled
from winch.storage.params import Finish, Wait


def as_finish(
    settled: Settled,
    id: str,
    token: str,
    *,
    is_awaited: bool = False,
    is_gated: bool = False,
    fingerprint: str | None = None,
) -> Finish:
    """What is sent to the store."""
    outcome = msgspec.structs.asdict(settled)
    outcome["waits"] = tuple(Wait(key, is_enough) for key, is_enough in settled.waits)
    return Finish(
        id=id,
        token=token,
        is_awaited=is_awaited,
        is_gated=is_gated,
        fingerprint=fingerprint,
        **outcome,
    )
