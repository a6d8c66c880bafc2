"""`TASKS = {"default": {"BACKEND": "winch.integrations.django.WinchBackend"}}`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.db import transaction
from django.utils import timezone

from winch import Job
from winch.errors import JobNotFound, UnknownTask
from winch.integrations.django import requests
from winch.integrations.django.api import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    task_enqueued,
)
from winch.integrations.django.decorators import WinchTask
from winch.integrations.django.handlers import register, runner_of, send
from winch.integrations.django.results import (
    PRIORITY,
    RUN_AFTER,
    STATUS,
    aware,
    moment,
    new_result,
    result_of,
)
from winch.integrations.django.stores import ON_COMMIT, Store, store_of
from winch.types import Bound, JobRecord


class WinchBackend(BaseTaskBackend):
    """Django's tasks as Winch jobs."""

    task_class = WinchTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @property
    def store(self) -> Store:
        """The app and the database of this entry of TASKS."""
        return store_of(self.alias, self.options)

    def validate_task(self, task: Any) -> None:
        """Raise InvalidTask for a task that cannot be enqueued here."""
        if self.queues and task.queue_name not in self.queues:
            raise InvalidTask(
                f"Queue '{task.queue_name}' is not valid for backend. Add it to "
                f"TASKS[{self.alias!r}]['QUEUES'], which has {', '.join(sorted(self.queues))}; an empty "
                "list allows every queue."
            )
        super().validate_task(task)

    # -- enqueue -----------------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Store a job. Inside `atomic()` it belongs to the transaction, or waits for its commit."""
        self.validate_task(task)
        result = new_result(task, args, kwargs, self.alias)
        store = self.store
        if store.mode == ON_COMMIT and store.connection.in_atomic_block:
            return self._defer(store, result)
        conn = store.joined
        self._store(store, result, self._bound(store, result, conn=conn), conn)
        return result

    def _defer(self, store: Store, result: Any) -> Any:
        """Store the job when the transaction commits. Until then the result exists for this transaction
        only, and a rollback takes it back. A call that cannot be stored fails before the commit."""
        job_id = store.app.client.draw_id()
        call = self._bound(store, result, id=job_id)
        object.__setattr__(result, "id", job_id)
        object.__setattr__(result, "enqueued_at", moment(timezone.now()))
        deferred = Deferred(result, lambda: self._store(store, result, call, None))
        transaction.on_commit(deferred, using=store.database)
        return result

    def _store(self, store: Store, result: Any, call: Bound[Any], conn: object) -> None:
        self._fill(result, store, store.app.client.enqueue(call), conn)
        send(task_enqueued, result)

    def _bound(self, store: Store, result: Any, **options: Any) -> Bound[Any]:
        """The call as Winch stores it, with the request that it comes from."""
        task = result.task
        given: dict[str, Any] = {"queue": task.queue_name, "priority": task.priority, **options}
        headers = requests.headers()
        if task.priority:
            headers[PRIORITY] = str(int(task.priority))
        if task.run_after is not None:
            given["run_at"] = aware(task.run_after)
            headers[RUN_AFTER] = given["run_at"].isoformat()
        given["headers"] = headers
        own = register(store.app, task, self.alias, self.options)
        return own.using(**given).bind(*result.args, **result.kwargs)

    def _fill(self, result: Any, store: Store, job: Job[Any], conn: object) -> None:
        """Write into the result what the store knows of the job. The enqueue itself answers with the
        state and time of a new job; a held unique key gives another job, which is read."""
        if job.first_state is not None:
            object.__setattr__(result, "id", job.id)
            object.__setattr__(result, "status", STATUS[job.first_state])
            object.__setattr__(result, "enqueued_at", moment(job.created_at))
            return
        record = store.app.jobs.get(job.id, conn=conn).record
        found = result_of(store.app.client.revealed(record), result.task, self.alias)
        for name in ("id", "status", "enqueued_at", "started_at", "last_attempted_at", "worker_ids"):
            object.__setattr__(result, name, getattr(found, name))

    # -- results -----------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> Any:
        """The result of a job, as its transaction sees it. Raises TaskResultDoesNotExist."""
        store = self.store
        for result in self.waiting(store):
            if result.id == result_id:
                return result
        conn = store.joined
        try:
            record = store.app.jobs.get(str(result_id), conn=conn).record
            return self._read(store, record)
        except (JobNotFound, UnknownTask) as error:
            raise TaskResultDoesNotExist(result_id) from error

    def _read(self, store: Store, record: JobRecord) -> Any:
        runner = runner_of(store.app.tasks.get(record.task))
        if runner is None:  # a task of Winch's own
            raise UnknownTask(record.task, ())
        return result_of(store.app.client.revealed(record), runner.task, self.alias)

    @staticmethod
    def waiting(store: Store) -> list[Any]:
        """The results that wait for the commit of this thread's transaction."""
        if store.mode != ON_COMMIT or not store.connection.in_atomic_block:
            return []
        calls = (entry[1] for entry in store.connection.run_on_commit)
        return [call.result for call in calls if isinstance(call, Deferred) and not call.is_stored]

    # -- checks ------------------------------------------------------------------------------------

    def check(self, **kwargs: Any) -> Iterable[Any]:
        """What is wrong with this entry of TASKS, for `manage.py check`."""
        from winch.integrations.django.checks import check_backend

        return check_backend(self)


class Deferred:
    """An enqueue that waits for a commit."""

    def __init__(self, result: Any, store: Callable[[], None]) -> None:
        self._store = store
        self.result: Any = result
        self.is_stored: bool = False
        """A test may run what waits for a commit, and keep it in the list."""

    def __call__(self) -> None:
        self.is_stored = True
        self._store()
