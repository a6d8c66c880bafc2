"""What a member of a flow finds when it is claimed: the results before it, or why it does not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core.errors import FlowFailed, InvalidPayload, type_name
from winch.core.flow import (
    INPUTS_HEADER,
    Inputs,
    members_prefix,
    members_prefix_of,
    numbered,
    read_inputs,
    tag_of,
)
from winch.core.job import Failure
from winch.core.lifecycle import JobState
from winch.core.outcome import Cancel, Outcome, Settled
from winch.core.values import codec
from winch.engine.base import operation
from winch.engine.base.encryption import Keyring, unseal
from winch.engine.flows.store import members_page
from winch.storage.decide.waits import all_key, death_key
from winch.storage.params import Ending, JobFilter

if TYPE_CHECKING:
    from winch.core.job import Claim, JobRecord
    from winch.engine.tasks.task import Task
    from winch.storage.protocol import Driver

CHUNK = 1000
# How many live members of its batch a callback that was claimed too early looks at.
LOOKED_AT = 500
LIVE_STATES = tuple(state for state in JobState if not state.is_final)


async def with_inputs(
    driver: Callable[[], Driver], claim: Claim, task: Task[Any, Any], args: str, keys: Keyring | None
) -> str | Outcome:
    """The member's arguments with what it takes from those before it; its outcome where it does not run.

    It may be claimed too early (an operator has retried a part of the flow): then it waits again.
    """
    inputs = read_inputs(claim.headers[INPUTS_HEADER])
    if inputs.wants != "edges":
        return await _callback(driver(), inputs, args)
    results: list[Any] = []
    again: list[str] = []
    live = 0
    for edge in inputs.edges:
        prefix = members_prefix(inputs.flow, edge.name)
        for at in range(0, edge.count, CHUNK):
            ids = [prefix + numbered(number) for number in range(at, min(at + CHUNK, edge.count))]
            ends = await driver().arun(driver().results(ids))
            if not live and inputs.takes == "nothing":
                if all(end is not None and end.state is JobState.COMPLETED for end in ends):
                    continue  # what no parameter takes is not kept in memory
            elif not live and (whole := _all_results(ends)) is not None:
                results += whole
                continue
            if unfinished := sum(end is not None and not end.is_final for end in ends):
                live += unfinished
                again.append(all_key(prefix))
            if live:
                continue  # it does not run now, whatever the others came to
            for job_id, end in zip(ids, ends, strict=True):
                if end is not None and end.state is JobState.COMPLETED:
                    results.append(_result(job_id, end, keys))
                elif edge.policy == "continue":
                    results.append(None)
                else:
                    return _not_run(job_id, end, edge.policy)
    if live:
        return _waits_again(live, again)
    if inputs.takes == "nothing":
        return args
    value = results[0] if inputs.takes == "one" else results
    return task.arguments.completed(args, value)


def _waits_again(live: int, keys: Sequence[str], enough: Sequence[str] = ()) -> Settled:
    """Blocked until all of `keys` have come, or one of `enough`."""
    waits = [(key, False) for key in dict.fromkeys(keys)] + [(key, True) for key in enough]
    return Settled(
        JobState.BLOCKED,
        "waited",
        counts=False,
        reason=f"it waits for {live} job{'s' if live > 1 else ''} before it",
        waits=tuple(waits),
        leaves_turn=True,  # those it waits for may be members of its FIFO key
    )


def _not_run(job_id: str, end: Ending | None, policy: str) -> Outcome:
    state = "gone" if end is None else str(end.state)
    reason = f"job {job_id}, which comes before it, is {state}"
    if policy == "fail":
        error = Failure(type_name(FlowFailed), reason)
        return Settled(JobState.DEAD, "failed", error=error, reason=reason)
    return Cancel(reason)


async def _callback(driver: Driver, inputs: Inputs, args: str) -> str | Outcome:
    """A batch's callback runs, is not needed, or waits again: an operator may have retried it early."""

    async def members(*states: JobState, limit: int = 1) -> Sequence[JobRecord]:
        which = JobFilter(states=states, tag=tag_of(inputs.flow), limit=limit)
        return await operation.arun(driver, members_page(driver, inputs.flow, which))

    if inputs.wants == "death" and await members(JobState.DEAD):
        return args
    if live := await members(*LIVE_STATES, limit=LOOKED_AT):
        together = [all_key(members_prefix_of(job.id)) for job in live]
        deaths = [death_key(job.id) for job in live] if inputs.wants == "death" else []
        return _waits_again(len(live), together, deaths)
    if inputs.wants == "death":
        return Cancel("no member of its batch died")
    if inputs.wants == "success" and await members(JobState.DEAD, JobState.CANCELLED):
        return Cancel("not every member of its batch completed")
    return args


def _all_results(ends: Sequence[Ending | None]) -> list[Any] | None:
    """The results of jobs that have all completed, read in one go; None where each is to be looked at.
    What is encrypted or cut is an object."""
    texts = [
        end.result
        for end in ends
        if end is not None and end.state is JobState.COMPLETED and end.result is not None
    ]
    if len(texts) < len(ends) or any(text.startswith("{") for text in texts):
        return None
    try:
        found: list[Any] = msgspec.json.decode(f"[{','.join(texts)}]")
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None  # its owner is named later
    return found if len(found) == len(texts) else None


def _result(job_id: str, end: Ending, keys: Keyring | None) -> Any:
    if end.result is None:
        return None
    text = unseal(keys, end.result, job=job_id, task=end.task, field="result")
    if (cut := codec.truncated(text)) is not None:
        raise InvalidPayload(
            f"the result of job {job_id} before it was {cut.bytes:,} bytes and is not whole"
        )
    return msgspec.json.decode(text)
