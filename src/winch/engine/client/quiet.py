"""Which workers are quiet, as they have written into the store, for `why` and `winch workers list`."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from winch.engine.base.operation import Operation
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import Facts, SessionInfo
from winch.storage.protocol import Driver

# What each process uses, and whether it is quiet: engine/observe/usage.py writes it.
BOOK = "usage"


class _Noted(msgspec.Struct):
    is_quiet: bool = False


_decode = msgspec.json.Decoder(_Noted).decode


def quiet_sessions(driver: Driver) -> Operation[set[str]]:
    """The sessions that claim nothing until a resume; at most those of 1,000 processes."""
    lines: list[KvRecord] = yield driver.kv_list(KvFilter(book=BOOK))
    found = set()
    for line in lines:
        try:
            if _decode(line.body).is_quiet:
                found.add(line.key)
        except msgspec.DecodeError:
            continue  # of another release
    return found


def all_quiet(driver: Driver, facts: Facts) -> Operation[str | None]:
    """That the workers which could run this job are all quiet, in words; None: one is not."""
    quiet = yield from quiet_sessions(driver)
    if not quiet:
        return None
    able = _able(facts, (yield driver.sessions(is_ended_too=False)))
    if not able or any(one.id not in quiet for one in able):
        return None
    names = sorted({one.worker for one in able})
    subject = "The only worker" if len(names) == 1 else f"All {len(names)} workers"
    verb = "is" if len(names) == 1 else "are"
    return (
        f"{subject} of its queue {facts.job.queue!r} that {'has' if len(names) == 1 else 'have'} its "
        f"task {verb} quiet. Let {'it' if len(names) == 1 else 'one'} claim again: "
        f"winch workers resume {names[0]}"
    )


def _able(facts: Facts, sessions: Collection[SessionInfo]) -> list[SessionInfo]:
    job = facts.job
    return [
        one
        for one in sessions
        if one.is_worker
        and one.lease_until > facts.now
        and job.queue in one.queues
        and job.task in one.tasks
    ]
