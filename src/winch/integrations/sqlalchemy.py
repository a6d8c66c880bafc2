"""Jobs that belong to a SQLAlchemy session: they commit with it, and no call can leave it out.

    from winch.integrations.sqlalchemy import JobSession

    with JobSession(engine) as session, session.begin():
        session.add(Order(id=7))
        session.jobs.enqueue(send_receipt, 7)

`winch.integrations.sqlalchemy_async` has the same for async code. An application with a session class of
its own uses `SessionJobs(session)`. `RequireSession` refuses every enqueue outside a session.
`begin(app)` is the session for a SQLite file that holds jobs and data.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, SessionTransaction, scoped_session
from sqlalchemy.pool import NullPool

from winch import App, ConfigError, Context, Job, Middleware, StorageError, Task
from winch.types import Bound, NewJob, Using

P = ParamSpec("P")
R = TypeVar("R")

# Whether the enqueue that runs in this context came through a session, or needs none.
_allowed: ContextVar[bool] = ContextVar("winch session", default=False)


@contextmanager
def through_session() -> Iterator[None]:
    """Mark the enqueues of this block as made through a session."""
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


def with_session(call: Bound[R], session: object) -> Bound[R]:
    """The same call in the transaction of this session."""
    options = msgspec.structs.replace(call.options, conn=session)
    return msgspec.structs.replace(call, options=options)


class SessionJobs:
    """Enqueues in the transaction of one session.

        jobs = SessionJobs(session)
        jobs.enqueue(send_receipt, 7)
        jobs.enqueue_using(send_receipt.using(delay="5m"), 7)

    A job exists when the session commits. It never existed when the session rolls back.
    """

    def __init__(self, session: Session | scoped_session[Any] | Connection) -> None:
        self._session = session

    def enqueue(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job of this task in the transaction of the session."""
        return self._one(task.bind(*args, **kwargs))

    def enqueue_using(self, using: Using[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """`enqueue` for a task with options: `jobs.enqueue_using(send.using(delay="5m"), 7)`."""
        return self._one(using.bind(*args, **kwargs))

    def enqueue_many(self, calls: Iterable[Bound[Any]]) -> list[Job[Any]]:
        """Store many jobs in the transaction of the session."""
        found = list(calls)
        if not found:
            return []
        with through_session():
            return found[0].task.client.enqueue_many(found, self._session)

    def _one(self, call: Bound[R]) -> Job[R]:
        with through_session():
            return call.task.client.enqueue(with_session(call, self._session))


class JobSession(Session):
    """A session that can enqueue: `sessionmaker(engine, class_=JobSession)`.

    with JobSession(engine) as session, session.begin():
        session.jobs.enqueue(send_receipt, 7)
    """

    @property
    def jobs(self) -> SessionJobs:
        """Enqueues in the transaction of this session."""
        return SessionJobs(self)


class RequireSession(Middleware):
    """Refuses an enqueue that is not made through a session: `app.use(RequireSession())`.

    `send_receipt.enqueue(7)` then raises ConfigError; `session.jobs.enqueue(send_receipt, 7)` stores
    the job. Handlers of jobs may enqueue as they like. `with without_session(): …` allows one place to.
    """

    def enqueue_all(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """Raise ConfigError unless these jobs come through a session."""
        if jobs and not _allowed.get():
            raise ConfigError(
                f"{jobs[0].task} is enqueued outside a session: use session.jobs.enqueue(…), or "
                "`with without_session():` where no transaction is meant"
            )
        return jobs

    async def run(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Let a handler enqueue as it likes: it has no request and no session of one."""
        with through_session():
            return await call_next()


@contextmanager
def without_session() -> Iterator[None]:
    """Allow enqueues outside a session in this block, where `RequireSession` is in use."""
    with through_session():
        yield


# -- one SQLite file for jobs and data ---------------------------------------------------------------

_engines: WeakKeyDictionary[App, Engine] = WeakKeyDictionary()
_making = threading.Lock()
_lent: ContextVar[Any] = ContextVar("winch connection")


@contextmanager
def begin(app: App) -> Iterator[JobSession]:
    """A session in a transaction of the app's own SQLite file, for data and jobs.

        with begin(app) as session:
            session.add(Order(id=7))
            session.jobs.enqueue(send_receipt, 7)

    The end of the block commits; an exception rolls back. The session works on the connection of
    `app.transaction()`, which is safe on every build of SQLite. Other writers wait, so keep it short.
    """
    if not app.settings.url.startswith("sqlite:"):
        raise ConfigError("begin(app) is for SQLite; on PostgreSQL use JobSession(your_engine)")
    with app.transaction() as conn:
        token = _lent.set(conn)
        try:
            with JobSession(_engine(app)) as session:
                event.listen(session, "before_commit", _refuse_commit)
                ended: list[SessionTransaction] = []

                def note(_: Session, rolled_back: SessionTransaction) -> None:
                    if not rolled_back.nested:  # a savepoint takes back its own jobs alone
                        ended.append(rolled_back)

                event.listen(session, "after_soft_rollback", note)
                yield session
                if ended:
                    raise StorageError(
                        "the session was rolled back inside the block of begin(app): nothing is stored"
                    )
                session.flush()
        finally:
            _lent.reset(token)


def _refuse_commit(session: Session) -> None:
    if not session.in_nested_transaction():
        raise ConfigError("the end of the block of begin(app) commits; leave session.commit() out")


def _engine(app: App) -> Engine:
    with _making:
        found = _engines.get(app)
        if found is None:
            found = create_engine("sqlite://", creator=_lent.get, poolclass=NullPool)
            # The connection belongs to app.transaction(), which begins, ends and keeps it.
            dialect: Any = found.dialect
            for name in ("do_begin", "do_commit", "do_rollback", "do_close", "do_terminate"):
                setattr(dialect, name, lambda _: None)
            _engines[app] = found
        return found


__all__ = [
    "JobSession",
    "RequireSession",
    "SessionJobs",
    "begin",
    "without_session",
]
