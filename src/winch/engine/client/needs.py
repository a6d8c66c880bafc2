"""What tasks need of their workers, kept in the store: `why` names a missing label without the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from winch.core.policy.labels import absent, meets
from winch.engine.base.operation import Operation
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import Facts, SessionInfo
from winch.storage.protocol import Driver

BOOK = "needs"

_decode = msgspec.json.Decoder(dict[str, str]).decode


def publish_needs(driver: Driver, needs: Mapping[str, Mapping[str, str]]) -> Operation[None]:
    """Store what these tasks need, by name; the last worker to start wins. A task with an empty mapping
    needs nothing."""
    kept = {line.key: _decode(line.body) for line in (yield driver.kv_list(KvFilter(book=BOOK)))}
    changed = [
        KvRecord(book=BOOK, key=task, body=msgspec.json.encode(dict(wanted)).decode())
        for task, wanted in needs.items()
        if wanted and kept.get(task) != wanted
    ]
    if changed:
        yield driver.kv_put(changed)
    gone = [task for task, wanted in needs.items() if not wanted and task in kept]
    if gone:
        yield driver.kv_delete(BOOK, gone)


def unmet(driver: Driver, facts: Facts) -> Operation[str | None]:
    """Which needs of the job's task no live worker of its queue meets, in words; None: none is known."""
    task = facts.job.task
    for line in (
        yield driver.kv_list(KvFilter(book=BOOK, before=f"{task}\x01", is_newest_first=True, limit=1))
    ):
        if line.key == task:
            return _words(facts, _decode(line.body), (yield driver.sessions(is_ended_too=False)))
    return None


def _words(facts: Facts, needs: Mapping[str, str], sessions: Sequence[SessionInfo]) -> str | None:
    live = [one for one in sessions if one.is_worker and one.lease_until > facts.now]
    serving = [one.labels for one in live if facts.job.queue in one.queues]
    if any(meets(labels, needs) for labels in serving):
        return None  # such a worker has not imported the task
    flags = " ".join(f"--label {name}={text}" for name, text in needs.items())
    start = f"Start one: winch worker -A module:app -Q {facts.job.queue} {flags}"
    missing = absent((one.labels for one in live), needs)
    task = facts.job.task
    if missing:
        words = f"the label {missing[0]}" if len(missing) == 1 else f"the labels {', '.join(missing)}"
        return f"No live worker has {words}, which its task {task!r} needs. {start}"
    wanted = ", ".join(f"{name}={text}" for name, text in needs.items())
    queue = facts.job.queue
    return f"No worker of its queue {queue!r} has all that its task {task!r} needs: {wanted}. {start}"
