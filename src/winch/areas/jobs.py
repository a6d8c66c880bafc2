"""`app.jobs`: find jobs and act on them."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Any

from winch.core.errors import ConfigError
from winch.core.lifecycle import JobState
from winch.engine.base.operation import Operation
from winch.engine.client import operations
from winch.engine.client.audit import actor, noted
from winch.engine.client.client import Client
from winch.engine.client.job import Job
from winch.engine.client.twins import blocking, twin
from winch.engine.tasks.options import check_states
from winch.engine.tasks.transaction import Statements
from winch.storage.gate_records import KeyHolder
from winch.storage.params import JobFilter


class Jobs:
    """`app.jobs`: find jobs and act on them."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @blocking
    def get(self, job_id: str, *, conn: object = None) -> Operation[Job[Any]]:
        """The job with this id. Raises JobNotFound. `conn=` reads it inside the caller's transaction,
        which sees the jobs that it has enqueued itself."""
        if isinstance(conn, Statements):
            conn = conn.connection
        record = yield from operations.get(self._client.driver(), job_id, conn)
        return Job(self._client, record.id, record)

    @twin(get)
    def aget(self) -> None:
        """`get` without blocking the event loop."""

    @blocking
    def list(
        self,
        *,
        state: str | Sequence[str] | None = None,
        task: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        group: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Operation[JobList]:
        """Jobs that match, newest first. `.next` is the cursor of the next page, to pass as `after`.

            for job in app.jobs.list(state="dead", queue="mail", limit=50):
                print(job.id, job.why())

        `group` is the fingerprint of a group of dead jobs.
        """
        which = JobFilter(
            states=check_states(state),
            task=task,
            queue=queue,
            tag=tag,
            fingerprint=group,
            limit=limit,
            after=after,
        )
        return (yield from page_of(self._client, which))

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

    @blocking
    def cancel(self, job_id: str, *, reason: str | None = None) -> Operation[JobState]:
        """Cancel the job and return its former state. Raises InvalidTransition when it is final."""
        return (yield from self._client.cancelling(job_id, reason, None))

    @twin(cancel)
    def acancel(self) -> None:
        """`cancel` without blocking the event loop."""

    @blocking
    def retry(self, job_id: str, *, from_step: str | None = None) -> Operation[JobState]:
        """Make the job ready now and return its former state.

        With `from_step` the job keeps the results of the steps before that one and makes it and all
        later ones again. Children that these steps spawned are created anew.
        """
        return (yield from self._client.retrying(job_id, by=None, from_step=from_step))

    @twin(retry)
    def aretry(self) -> None:
        """`retry` without blocking the event loop."""

    @blocking
    def delete(self, job_id: str) -> Operation[JobState]:
        """Delete the job for good and return its former state."""
        return (yield from operations.delete(self._client.driver(), job_id, None))

    @twin(delete)
    def adelete(self) -> None:
        """`delete` without blocking the event loop."""

    @blocking
    def unique_keys(self, *, prefix: str = "", limit: int = 50) -> Operation[builtins.list[KeyHolder]]:
        """Some of the unique keys that live jobs hold and that begin so, with their holders."""
        if not 1 <= limit <= 1000:
            raise ConfigError(f"limit must be from 1 to 1000, got {limit}")
        found: builtins.list[KeyHolder] = yield self._client.driver().unique_keys(
            prefix=prefix, limit=limit
        )
        return found

    @twin(unique_keys)
    def aunique_keys(self) -> None:
        """`unique_keys` without blocking the event loop."""

    @blocking
    def release_key(self, key: str) -> Operation[str | None]:
        """Free a unique key, so that another job can be enqueued with it. Returns the id of the job that
        held it, which continues; None when no job did.
        """
        driver = self._client.driver()
        holder: str | None = yield driver.release_key(key, by=actor())
        if holder is not None:
            yield from noted(driver, "release key", key, job=holder)
        return holder

    @twin(release_key)
    def arelease_key(self) -> None:
        """`release_key` without blocking the event loop."""


class JobList(list["Job[Any]"]):
    """A page of jobs; `next` is the cursor to pass as `after`, None at the end."""

    def __init__(self, jobs: Iterable[Job[Any]], following: str | None) -> None:
        super().__init__(jobs)
        self.next = following


def page_of(client: Client, which: JobFilter) -> Operation[JobList]:
    """One page of the jobs that match, with the cursor of the next."""
    if not 1 <= which.limit <= 1000:
        raise ConfigError(f"limit must be from 1 to 1000, got {which.limit}")
    jobs, following = yield from client.page(which)
    return JobList(jobs, following)
