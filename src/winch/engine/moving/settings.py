"""What people have set and what handlers have noted, beside the jobs: it goes with them.

A record is copied where the target has none of its key. The source notes which ones, so that a way back,
or a later move in the other direction, tells what was removed meanwhile from what was there before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import Order, QueueRule
from winch.core.values.search import BOOK as SEARCH
from winch.core.values.search import job_of
from winch.engine.client.backpressure import BOOK as QUEUE_SETTINGS
from winch.engine.client.backpressure import PAUSED, UNTIL, pause_ends, pause_records, read_settings
from winch.engine.moving.carrying import LIVE, Carrier, copy_records, records_of, store_time
from winch.engine.moving.holding import BY, live_limits
from winch.engine.moving.route import Scope
from winch.storage.kv_records import KvRecord
from winch.storage.protocol import Driver

# Books that processes with move_to read where the jobs run, and write in both stores.
LED = ("token", "webhook", "view", "dead group")
COPIED = (QUEUE_SETTINGS, "needs", *LED)
# Which records were copied, in the source: the book and the key.
COPIES = "move copies"
IDEMPOTENCY = "idempotency"
# What the text of an effect begins with.
BEGUN, DONE = "open\n", "done\n"
# How long an outside effect is remembered in the target; what was asked for is not known there.
EFFECTS_KEPT = timedelta(days=1)
# After how many records the mover looks whether it still has the lock.
LOCK_EVERY = 50
PAGE = 500
MOST_SIGNALS = 10_000


def copy_settings(carrier: Carrier, *, is_back: bool) -> None:
    """What people have set in the source, where the target has no setting of its own."""
    source, target = carrier.source, carrier.target
    scope = carrier.scope
    if scope.tenant is not None:  # its queues are those of others, too
        return
    for book in _books(scope):
        wanted = [one for one in records_of(source, book) if _is_copied(one, scope)]
        if is_back:
            copy_records(target, _watched(carrier, wanted), None)
        else:
            _copy_book(carrier, book, wanted)
    _copy_ends_of_pauses(carrier)
    for queue, one in read_settings(list(records_of(target, QUEUE_SETTINGS))).items():
        if scope.covers(queue, None):
            is_strict = one.order is Order.STRICT
            rule = QueueRule(concurrency=one.concurrency, is_strict=is_strict)
            target.run(target.set_queue(queue, rule))
    if scope.is_all and (specs := live_limits(source)):
        target.run(target.set_limits(dict(specs), by=BY))


def _copy_book(carrier: Carrier, book: str, wanted: Iterable[KvRecord]) -> None:
    source, target = carrier.source, carrier.target
    noted = _noted(source, book)
    # One that was copied and is not there any more was removed there.
    copied = [
        record.key
        for record in _watched(carrier, wanted)
        if record.key not in noted and target.run(target.kv_swap(record)) is None
    ]
    for start in range(0, len(copied), PAGE):
        notes = [
            KvRecord(book=COPIES, key=f"{book}\x1f{key}", body="1")
            for key in copied[start : start + PAGE]
        ]
        source.run(source.kv_put(notes))
    # Removed while it was copied: a process that removes it later removes it in both stores.
    there = {record.key for record in records_of(source, book)}
    if gone := [key for key in copied if key not in there]:
        target.run(target.kv_delete(book, gone))


def bring_settings_back(carrier: Carrier) -> None:
    """What was changed or removed in the target of this move is so in its source again."""
    source, target, scope = carrier.source, carrier.target, carrier.scope
    if scope.tenant is not None:
        return
    for book in _books(scope):
        noted = _noted(source, book)
        here = {record.key: record.body for record in records_of(source, book)}
        there = [one for one in records_of(target, book) if _is_copied(one, scope)]
        for record in _watched(carrier, there):
            is_ours = record.key in noted or record.key not in here
            if is_ours and here.get(record.key) != record.body:
                source.run(source.kv_put([record]))
        if gone := [key for key in noted & here.keys() if key not in {one.key for one in there}]:
            source.run(source.kv_delete(book, gone))


def forget_copies(source: Driver, copies_in: Driver) -> None:
    """Remove what was copied from the source of a move: it would hold no longer for a later move."""
    for book in COPIED:
        if noted := sorted(_noted(source, book)):
            copies_in.run(copies_in.kv_delete(book, noted))
            source.run(source.kv_delete(COPIES, [f"{book}\x1f{key}" for key in noted]))


def _noted(source: Driver, book: str) -> set[str]:
    records = records_of(source, COPIES, f"{book}\x1f", f"{book}\x20")
    return {record.key.partition("\x1f")[2] for record in records}


def _books(scope: Scope) -> tuple[str, ...]:
    return COPIED if scope.is_all else (QUEUE_SETTINGS,)


def _is_copied(record: KvRecord, scope: Scope) -> bool:
    if record.key.startswith((UNTIL, PAUSED)):
        return False
    return scope.is_all or record.key in scope.queues


def _copy_ends_of_pauses(carrier: Carrier) -> None:
    """A pause with an end is over in the target at that time, too."""
    source, target = carrier.source, carrier.target
    now = store_time(source)
    for queue, until in pause_ends(list(records_of(source, QUEUE_SETTINGS))).items():
        if until > now and carrier.scope.covers(queue, None):
            copy_records(target, pause_records(queue, until, now), None)


def copy_effects(carrier: Carrier, known: set[KvRecord]) -> None:
    """The keys of outside effects that were begun or done, but for those that are known to be there."""
    target = carrier.target
    for record in _watched(carrier, records_of(carrier.source, IDEMPOTENCY)):
        if record in known:
            continue
        kept = KvRecord(book=IDEMPOTENCY, key=record.key, body=record.body, keep=EFFECTS_KEPT)
        there = target.run(target.kv_swap(kept))
        if there is not None and record.body.startswith(DONE):
            # It was begun when it was copied. What is done is not done again.
            target.run(target.kv_swap(kept, instead_of=BEGUN))
        known.add(record)


def copy_signals(carrier: Carrier) -> None:
    """The signals that no job has taken, for the jobs that will wait for them there."""
    for signal in carrier.source.run(carrier.source.untaken_signals(limit=MOST_SIGNALS)):
        carrier.still_mine()
        carrier.target.run(carrier.target.signal(signal.name, signal.payload, id=signal.id))


def bring_signals(carrier: Carrier) -> None:
    """The same once no live job is left in the source, which forgets them: none is taken in both."""
    source = carrier.source
    while signals := source.run(source.untaken_signals(limit=PAGE)):
        for signal in signals:
            carrier.still_mine()
            carrier.target.run(carrier.target.signal(signal.name, signal.payload, id=signal.id))
        if not carrier.scope.is_all or not source.run(source.forget_signals(signals)):
            return


def copy_search(carrier: Carrier, *, final_too: bool) -> None:
    """The lines by which a search finds the jobs that move or have moved. A process with move_to writes
    those of new jobs in both stores."""
    source, target = carrier.source, carrier.target
    moving = (*LIVE, JobState.DEAD)
    page: list[KvRecord] = []

    def send() -> None:
        ids = sorted({job_of(record.key) for record in page})
        wanted = set()
        for job in source.run(source.get(ids)):
            if job is not None and carrier.scope.covers(job.queue, job.tenant):
                wanted |= {job.id} if final_too or job.state in moving else set()
        for job in target.run(target.get(ids)):
            wanted |= set() if job is None else {job.id}
        if lines := [record for record in page if job_of(record.key) in wanted]:
            target.run(target.kv_put(lines))
        page.clear()

    for record in _watched(carrier, records_of(source, SEARCH)):
        page.append(record)
        if len(page) == PAGE:
            send()
    if page:
        send()


def _watched(carrier: Carrier, records: Iterable[KvRecord]) -> Iterator[KvRecord]:
    """These records, while no other mover is at work."""
    for place, record in enumerate(records):
        if place % LOCK_EVERY == 0:
            carrier.still_mine()
        yield record
