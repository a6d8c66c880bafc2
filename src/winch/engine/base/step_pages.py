"""The pages of long step histories: records in a book of their own, beside the jobs.

A page is stored before the head that names it (`core/steps.py`). Its key has a part of the claim's
token, so that no two attempts write the same page. A page that no head names, of an attempt that lost
its claim or of a life before a restart, does no harm. `sweep_pages` deletes those of jobs that are gone.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from winch.core import steps
from winch.core.errors import InvalidPayload, MissingKey
from winch.core.job import JobRecord
from winch.core.steps import PAGE_BOOK, PAGED_BOOK, StepHistory, page_key, page_span
from winch.engine.base.encryption import Field, Keyring, unseal
from winch.engine.base.operation import Operation
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.protocol import Driver

# Pages that one read brings.
READ_PAGES = 32
# Jobs with pages that one sweep looks at.
SWEPT = 200


def page_records(job_id: str, cut: Sequence[tuple[str, str]]) -> list[KvRecord]:
    """How pages are stored, and the line by which they are found when the job is gone."""
    return [
        KvRecord(book=PAGED_BOOK, key=job_id, body="true"),
        *(KvRecord(book=PAGE_BOOK, key=page_key(job_id, key), body=body) for key, body in cut),
    ]


def read_pages(driver: Driver, job_id: str, pages: Sequence[str]) -> Operation[list[str]]:
    """The stored texts of these pages, in order; raises InvalidPayload where one is missing."""
    found: dict[str, str] = {}
    after, before = page_span(job_id)
    while True:
        which = KvFilter(book=PAGE_BOOK, after=after, before=before, limit=READ_PAGES)
        lines: list[KvRecord] = yield driver.kv_list(which)
        found |= {line.key: line.body for line in lines}
        if len(lines) < READ_PAGES:
            break
        after = lines[-1].key
    missing = [page for page in pages if page_key(job_id, page) not in found]
    if missing:
        raise InvalidPayload(f"{len(missing)} of {len(pages)} pages of its steps are missing")
    return [found[page_key(job_id, page)] for page in pages]


def forget_pages(driver: Driver, job_id: str, pages: Sequence[str]) -> Operation[None]:
    """Delete pages that no head names any more."""
    yield driver.kv_delete(PAGE_BOOK, [page_key(job_id, page) for page in pages])


def sweep_pages(driver: Driver, after: str | None) -> Operation[str | None]:
    """Delete the pages of jobs that are gone, among the next jobs that have some; returns where the next
    sweep begins, None at the end. Pages are listed before their jobs are looked up: those of a later
    job with the same id stay."""
    lines: list[KvRecord] = yield driver.kv_list(KvFilter(book=PAGED_BOOK, after=after, limit=SWEPT))
    if not lines:
        return None
    ids = [line.key for line in lines]
    jobs = yield driver.get(ids)
    for job_id in [job_id for job_id, job in zip(ids, jobs, strict=True) if job is None]:
        first, last = page_span(job_id)
        which = KvFilter(book=PAGE_BOOK, after=first, before=last, limit=READ_PAGES)
        while pages := (yield driver.kv_list(which)):
            [job] = yield driver.get([job_id])
            if job is not None:
                break
            yield driver.kv_delete(PAGE_BOOK, [page.key for page in pages])
        else:
            yield driver.kv_delete(PAGED_BOOK, [job_id])
    return ids[-1] if len(lines) == SWEPT else None


def whole_history(
    driver: Driver, keys: Keyring | None, record: JobRecord
) -> Operation[StepHistory | None]:
    """All steps of a job, with those in pages; None for a job without. Raises MissingKey and
    InvalidPayload."""

    def opened(text: str, field: Field) -> str:
        return unseal(keys, text, job=record.id, task=record.task, field=field)

    if record.checkpoint is None:
        return None
    head = steps.read(opened(record.checkpoint, "checkpoint"))
    if head is None or not head.pages:
        return head
    texts = yield from read_pages(driver, record.id, head.pages)
    return steps.merged(head, [opened(text, "steps") for text in texts])


def with_pages(driver: Driver, keys: Keyring | None, record: JobRecord) -> Operation[JobRecord]:
    """The record with all steps in its checkpoint, for display; as it is where that cannot be read."""
    try:
        history = yield from whole_history(driver, keys, record)
    except (MissingKey, InvalidPayload):
        return record
    if history is None or not history.pages:
        return record
    return msgspec.structs.replace(record, checkpoint=msgspec.json.encode(history).decode())
