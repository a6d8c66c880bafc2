"""Looking for the jobs of a search: by the index of declared arguments, else job by job, newest first,
over a bounded number of jobs. A search that stops early is marked as partial and returns where to
continue.
"""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass, field

import msgspec

from winch.core.job import JobRecord
from winch.core.values.ids import parse_id
from winch.core.values.search import term_of
from winch.engine.base.encryption import revealed
from winch.engine.base.operation import Operation
from winch.engine.base.search_index import found_under, spellings
from winch.engine.tasks.runtime import Runtime
from winch.storage.params import Page
from winch.storage.protocol import Driver
from winch.web.search import Search, Test

MOST_SCANNED = 100_000
MOST_SECONDS = 5.0
CHUNK = 500
# Of so many jobs a store looks for those with a queue, a task or a tag in one go: first of few, then of
# more while it answers within SHORT seconds, and of fewer when it takes LONG.
FIRST_STRETCH, STRETCH = 1_000, 10_000
SHORT, LONG = 0.02, 0.04


@dataclass
class Found:
    jobs: list[JobRecord] = field(default_factory=list)
    next: str | None = None
    scanned: int = 0
    is_partial: bool = False


class Finder:
    """Finds jobs in one store, for one caller that `sees` some of them."""

    def __init__(self, driver: Driver, runtime: Runtime, sees: Test) -> None:
        self._driver = driver
        self._runtime = runtime
        self._sees = sees

    def find(
        self,
        search: Search,
        *,
        after: str | None = None,
        limit: int = 50,
        seconds: float = MOST_SECONDS,
    ) -> Operation[Found]:
        """Up to `limit` jobs that match, newest first. A walk over all jobs ends after `seconds`."""
        if search.ids is not None:
            records = yield self._driver.get(list(search.ids))
            return Found([job for job in records if job is not None and self._is_one(job, search)])
        if after is not None:
            after = parse_id(after, "cursor")
        if (terms := self._terms(search)) is not None:
            return (yield from self._by_index(search, terms, after, limit))
        return (yield from self._by_walking(search, after, limit, seconds))

    def _terms(self, search: Search) -> tuple[str, ...] | None:
        """What the index has these jobs under; None where it does not have all of them."""
        for name, value in search.args:
            if self._is_declared(name, search.which.task):
                return spellings(self._runtime.keys(), term_of(name, value))
        return None

    def _is_declared(self, name: str, task: str | None) -> bool:
        """Whether all jobs that have this argument are in the index: those of this task, or those of
        every task that takes it."""
        tasks = self._runtime.tasks
        wanted = [tasks.get(known) for known in tasks.names if task in (None, known)]
        taking = [one for one in wanted if name in inspect.signature(one.fn).parameters]
        return bool(taking) and all(name in one.options.search for one in taking)

    def _by_index(
        self, search: Search, terms: tuple[str, ...], after: str | None, limit: int
    ) -> Operation[Found]:
        found = Found()
        while True:
            ids = yield from found_under(self._driver, terms, after=after, limit=CHUNK)
            records = (yield self._driver.get(ids)) if ids else []
            for job_id, job in zip(ids, records, strict=True):
                found.scanned += 1
                after = job_id
                if job is not None and self._is_one(job, search):
                    found.jobs.append(job)
                    if len(found.jobs) == limit:
                        found.next = job_id if job_id != ids[-1] or len(ids) == CHUNK else None
                        return found
            if len(ids) < CHUNK:
                return found

    def _by_walking(
        self, search: Search, after: str | None, limit: int, seconds: float
    ) -> Operation[Found]:
        found = Found()
        began = time.monotonic()
        is_plain, stretch = not search.tests, FIRST_STRETCH
        while True:
            size = limit - len(found.jobs) if is_plain else CHUNK
            which = msgspec.structs.replace(search.which, limit=size, after=after, most=stretch)
            asked = time.monotonic()
            page: Page = yield self._driver.list_jobs(which)
            spent = time.monotonic() - asked
            for job in page.jobs:
                found.scanned += 1
                after = job.id
                if self._is_one(job, search):
                    found.jobs.append(job)
                    if len(found.jobs) == limit:
                        has_more = page.next is not None or job.id != page.jobs[-1].id
                        found.next = job.id if has_more else None
                        return found
            if page.next is None:
                return found
            if page.is_cut:
                after = page.next
                found.scanned += stretch
                if spent < SHORT:
                    stretch = min(2 * stretch, STRETCH)
                elif spent > LONG:
                    stretch = max(stretch // 2, CHUNK)
            is_over = not is_plain and found.scanned >= MOST_SCANNED
            if is_over or time.monotonic() - began > seconds:
                found.next, found.is_partial = after, True
                return found

    def _is_one(self, job: JobRecord, search: Search) -> bool:
        if not self._sees(job):
            return False
        keys = self._runtime.keys()
        if keys is not None and search.tests:
            job = revealed(keys, job)
        return search.fits(job)
