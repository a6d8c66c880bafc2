"""The death of a process, as the store records it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from winch.core.job import CRASH_RULE, SuspectRule
from winch.storage.params import ClaimRef


class CrashReport(msgspec.Struct, frozen=True):
    """The claims whose handlers ran in the process, the cause, and the rule by which a job is dead."""

    claims: Sequence[ClaimRef]
    cause: str
    rule: SuspectRule = CRASH_RULE
