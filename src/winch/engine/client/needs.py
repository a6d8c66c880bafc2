"""What tasks need of their workers, kept in the store: `why` names a missing label, or too few slots,
without the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from winch.core.policy.labels import absent, meets
from winch.engine.base.operation import Operation
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import Facts, SessionInfo
from winch.storage.protocol import Driver

BOOK = "needs"


class Needs(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task needs: labels, and the slots that each of its jobs takes."""

    labels: dict[str, str] = {}
    slots: int = 1


NOTHING = Needs()
# How to start a worker, as `App.start_worker` names it by default.
START = "winch worker -A module:app"
_decode = msgspec.json.Decoder(Needs).decode


def published(driver: Driver) -> Operation[dict[str, Needs]]:
    """What workers have published, by task."""
    return {line.key: _decode(line.body) for line in (yield driver.kv_list(KvFilter(book=BOOK)))}


def publish_needs(driver: Driver, needs: Mapping[str, Needs]) -> Operation[None]:
    """Store what these tasks need, by name; the last worker to start wins."""
    kept = yield from published(driver)
    changed = [
        KvRecord(book=BOOK, key=task, body=msgspec.json.encode(wanted).decode())
        for task, wanted in needs.items()
        if wanted != NOTHING and kept.get(task) != wanted
    ]
    if changed:
        yield driver.kv_put(changed)
    gone = [task for task, wanted in needs.items() if wanted == NOTHING and task in kept]
    if gone:
        yield driver.kv_delete(BOOK, gone)


def needs_of(driver: Driver, task: str) -> Operation[Needs]:
    """What a worker has published for this task."""
    which = KvFilter(book=BOOK, before=f"{task}\x01", is_newest_first=True, limit=1)
    for line in (yield driver.kv_list(which)):
        if line.key == task:
            return _decode(line.body)
    return NOTHING


def unmet(driver: Driver, facts: Facts, needs: Needs, start: str) -> Operation[str | None]:
    """What the job's task needs and no live worker of its queue has, in words; None: nothing. `start`:
    how to start a worker."""
    if needs == NOTHING:
        return None
    text = _words(facts, needs, (yield driver.sessions(is_ended_too=False)))
    return None if text is None else f"{text} Start one: {start}{_flags(facts, needs)}"


def _words(facts: Facts, needs: Needs, sessions: Sequence[SessionInfo]) -> str | None:
    live = [one for one in sessions if one.is_worker and one.lease_until > facts.now]
    serving = [one for one in live if facts.job.queue in one.queues]
    able = [one for one in serving if meets(one.labels, needs.labels)]
    if not able:
        return _missing_label(facts, needs, live)
    if all(one.slots < needs.slots for one in able):
        return (
            f"Its task {facts.job.task!r} needs {needs.slots} slots; no live worker of its queue "
            f"{facts.job.queue!r} has so many."
        )
    return None  # such a worker has not imported the task


def _flags(facts: Facts, needs: Needs) -> str:
    slots = f" -c {needs.slots}" if needs.slots > 1 else ""
    flags = "".join(f" --label {name}={text}" for name, text in needs.labels.items())
    return f" -Q {facts.job.queue}{slots}{flags}"


def _missing_label(facts: Facts, needs: Needs, live: Sequence[SessionInfo]) -> str:
    missing = absent((one.labels for one in live), needs.labels)
    task = facts.job.task
    if missing:
        words = f"the label {missing[0]}" if len(missing) == 1 else f"the labels {', '.join(missing)}"
        return f"No live worker has {words}, which its task {task!r} needs."
    wanted = ", ".join(f"{name}={text}" for name, text in needs.labels.items())
    queue = facts.job.queue
    return f"No worker of its queue {queue!r} has all that its task {task!r} needs: {wanted}."
