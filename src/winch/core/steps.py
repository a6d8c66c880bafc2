"""The durable history of a job: which steps it has made, and what came of them.

A workflow is a job that checkpoints. Its history is one bounded document in the place of the job's
checkpoint, so it is fenced, encrypted, archived and pruned with the job, and every claim brings it
along. What the handler saves with `ctx.checkpoint` is kept inside it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from winch.core.errors import InvalidPayload, PayloadTooLarge
from winch.core.job import Failure
from winch.core.lifecycle import JobState

MAX_STEP_BYTES = 256 * 1024
MAX_HISTORY_BYTES = 1024 * 1024

Kind = Literal["step", "sleep", "signal", "children", "version"]


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One durable call. `name` is unique in its job; `place` says the how-manieth call it was.

    `until`: a sleep or a wait is over then, a failed try may be repeated then. `is_failed`: it has
    failed for good. `result` is JSON text.
    """

    name: str
    kind: Kind
    place: int = -1
    at: datetime
    until: datetime | None = None
    tries: int = 0
    is_done: bool = False
    is_failed: bool = False
    result: str | None = None
    error: Failure | None = None
    has_undo: bool = False
    is_undone: bool = False


class Unwinding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job is to end so, and its steps are undone first. `tries` counts undos that failed.

    `undone_for` is the run time of the claim under which all was undone. A claim with the same one goes
    on after a crash and has only to end; one with another was brought back by somebody, to begin anew.
    """

    to: JobState
    what: str
    reason: str | None = None
    error: Failure | None = None
    tries: int = 0
    undone_for: datetime | None = None


class StepHistory(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="winch", tag="steps"
):
    """All of it. `checkpoint` is the handler's own, as JSON text."""

    steps: tuple[StepRecord, ...] = ()
    unwinding: Unwinding | None = None
    checkpoint: str | None = None

    @property
    def to_undo(self) -> tuple[StepRecord, ...]:
        """What is done and has an undo that did not run yet, latest first."""
        found = [s for s in self.steps if s.has_undo and s.is_done and not s.is_undone]
        return tuple(sorted(found, key=lambda step: step.place, reverse=True))


_MARK = '{"winch":"steps"'
_decoder = msgspec.json.Decoder(StepHistory)


def is_history(text: str | None) -> bool:
    return text is not None and text.startswith(_MARK)


def read(text: str | None) -> StepHistory | None:
    """The history in a job's checkpoint; None for another checkpoint, or none. Raises InvalidPayload
    for one that somebody has damaged."""
    if text is None or not is_history(text):
        return None
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidPayload(f"the history of its steps is malformed: {error}") from error


def write(history: StepHistory) -> str:
    """As it is stored; raises PayloadTooLarge."""
    raw = msgspec.json.encode(history)
    if len(raw) > MAX_HISTORY_BYTES:
        raise PayloadTooLarge(
            f"the history of {len(history.steps)} steps is {len(raw):,} bytes; the limit is "
            f"{MAX_HISTORY_BYTES:,}. Let steps return references to what they made, or spawn children "
            "that have histories of their own"
        )
    return raw.decode()
