"""The durable history of a job: which steps it has made, and what came of them.

A workflow is a job that checkpoints. The head of its history stands in the place of the job's
checkpoint: it is fenced, encrypted, archived and pruned with the job, and every claim brings it along.
It holds the newest steps. When these grow beyond PAGE_BYTES they move to a page: a record of its own
beside the job, which is read only when the handler runs again. What the handler saves with
`ctx.checkpoint` is kept in the head.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

import msgspec

from winch.core.errors import InvalidPayload
from winch.core.flow import INPUTS_HEADER
from winch.core.job import Claim, Failure
from winch.core.lifecycle import JobState

MAX_STEP_BYTES = 256 * 1024
MAX_HISTORY_BYTES = 64 * 1024 * 1024
# How much of the newest steps stays in the head, which every write of a step stores anew.
PAGE_BYTES = 16 * 1024
# The pages of all jobs, and the ids of the jobs that have some.
PAGE_BOOK, PAGED_BOOK = "step pages", "jobs with step pages"

Kind = Literal["step", "sleep", "signal", "children", "version"]


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One durable call. `name` is unique in its job; `place` is the number of the call.

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


class Compensation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job is to end so, and its steps are undone first. `tries` counts undos that failed.

    `undone_for` is the run time of the claim under which all was undone. A claim with the same one goes
    on after a crash and has only to end; one with another was retried by an operator, to begin anew.
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
    """The head. `checkpoint` is the handler's own, as JSON text.

    - `pages`: the keys of the pages with the steps before these, oldest first; `page_bytes` in all. A
      step that is in several places has changed: the last one counts.
    - `life`: how often the job has begun anew, by `ctx.restart` or by a retry from a step. `args` are
      the arguments of a restart, written for `version` of the task; `attempts` were before it.
    - `cut`: the last order to retry from a step that was carried out.
    """

    steps: tuple[StepRecord, ...] = ()
    compensation: Compensation | None = None
    checkpoint: str | None = None
    pages: tuple[str, ...] = ()
    page_bytes: int = 0
    life: int = 0
    args: str | None = None
    version: int = 0
    attempts: int = 0
    cut: str | None = None

    @property
    def to_undo(self) -> tuple[StepRecord, ...]:
        """What is done and has an undo that did not run yet, latest first."""
        found = [s for s in self.steps if s.has_undo and s.is_done and not s.is_undone]
        return tuple(sorted(found, key=lambda step: step.place, reverse=True))


_MARK = '{"winch":"steps"'
_decoder = msgspec.json.Decoder(StepHistory)
_page_decoder = msgspec.json.Decoder(list[StepRecord])


def is_history(text: str | None) -> bool:
    return text is not None and text.startswith(_MARK)


def read(text: str | None) -> StepHistory | None:
    """The head in a job's checkpoint; None for another checkpoint, or none. Raises InvalidPayload for
    one that is damaged."""
    if text is None or not is_history(text):
        return None
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidPayload(f"the history of its steps is malformed: {error}") from error


def read_page(text: str) -> list[StepRecord]:
    """The steps of a page; raises InvalidPayload."""
    try:
        return _page_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidPayload(f"a page of the history of its steps is malformed: {error}") from error


def merged(head: StepHistory, pages: Iterable[str]) -> StepHistory:
    """The whole history: the head with the steps of its pages before its own."""
    found = {step.name: step for page in pages for step in read_page(page)}
    found |= {step.name: step for step in head.steps}
    return msgspec.structs.replace(head, steps=tuple(found.values()))


def restarted(claim: Claim) -> Claim:
    """The claim of a job that may have been restarted: with the arguments and the count of attempts of
    its present life. `claim` has its checkpoint in plain text."""
    head = read(claim.checkpoint)
    if head is None or head.args is None:
        return claim
    return msgspec.structs.replace(
        claim,
        args=head.args,
        version=head.version,
        # A retry by an operator has set the count back.
        attempt=claim.attempt - head.attempts if claim.attempt > head.attempts else claim.attempt,
        headers={name: value for name, value in claim.headers.items() if name != INPUTS_HEADER},
    )


def page_key(job_id: str, page: str) -> str:
    """The key of a page in the book of pages. No id has a colon."""
    return f"{job_id}:{page}"


def page_span(job_id: str) -> tuple[str, str]:
    """All keys of the job's pages are after the first and before the second."""
    return f"{job_id}:", f"{job_id};"
