"""Exactly once where job and data share a database: the handler's writes, the job's completion and its
children in one commit.

The block ends the job. Its last statement is the fenced finish: when the claim is no longer this
attempt's, nothing takes effect and LostClaim is raised. When the answer to the COMMIT is lost, the store
is asked where the claim stands before anything is reported: committed work is never called failed, and
work that did not commit is never called done.

The transaction is one of Winch's own connection, or the application's: a connection or session handed to
`ctx.transaction` is joined, and committed through it, so that its hooks and caches see the commit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from winch.core.errors import ConfigError, LostClaim, StorageError, StorageUnavailable, WinchError
from winch.core.lifecycle import JobState
from winch.core.values import codec
from winch.engine.base import operation
from winch.engine.base.operation import Operation, Sleep
from winch.storage.params import Answer, ClaimRef, Finish, Standing

if TYPE_CHECKING:
    from types import TracebackType

    from winch.storage.protocol import Driver

# How long an unknown COMMIT is asked about before the attempt is given up as unsettled.
SETTLE_SECONDS = 60.0
SETTLE_PAUSE = 0.5


class Statements:
    """A connection with a transaction on it, for the application's own statements."""

    def __init__(self, connection: Any = None) -> None:
        self.connection: Any = connection

    def execute(self, statement: Any, *values: Any) -> Any:
        """Run a statement on the transaction's connection. Await it where the connection is async.

        Parameters and results are those of the connection's library.
        """
        execute = getattr(self.connection, "execute", None)
        if execute is None:  # Django's connection, and psycopg2's: everything goes through a cursor
            cursor = self.connection.cursor()
            cursor.execute(statement, *values)
            return cursor
        return execute(statement, *values)


class Transaction(Statements):
    """The transaction of a job: `with ctx.transaction() as tx`, or `async with` in an async handler.

    Run your statements with `tx.execute`, enqueue child jobs with `conn=tx`, and assign the job's
    result to `tx.result`.
    """

    def __init__(
        self,
        driver: Driver,
        claim: ClaimRef,
        finished: Callable[[], None],
        session: object = None,
        seal: Callable[[str], str] = lambda text: text,
        lease: float | None = None,
        *,
        has_gates: bool = False,
    ) -> None:
        super().__init__()
        self.connection: Any = None
        self._driver = driver
        self._claim = claim
        self._finished = finished
        self._session = session
        self._seal = seal
        self._lease = lease
        self._has_gates = has_gates
        self._block: AbstractContextManager[Any] | None = None
        self._ablock: AbstractAsyncContextManager[Any] | None = None
        self.result: Any = None

    # -- plain handlers ----------------------------------------------------------------------------

    def __enter__(self) -> Transaction:
        transaction = getattr(self._driver, "transaction", None)
        if transaction is None:
            raise ConfigError(
                f"ctx.transaction() needs a store with transactions; {self._driver.describe()} has none"
            )
        block: AbstractContextManager[Any] = (
            transaction(**self._limits())
            if self._session is None
            else transaction(self._session, **self._limits())
        )
        self._block = block
        self.connection = block.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        block = self._block
        if block is None or kind is not None:
            if block is not None:
                block.__exit__(kind, error, frames)
            return
        try:
            verb = self._driver.finish([self._outcome()])
            self._check(self._driver.run_on(self.connection, verb))
        except BaseException:
            block.__exit__(*sys.exc_info())
            raise
        try:
            block.__exit__(None, None, None)
        except StorageUnavailable as lost:
            if not lost.maybe_applied:
                raise
            operation.run(self._driver, self._settle(lost))
        except Exception as raised:
            # The COMMIT was refused, or it took and a hook of the application's failed after it.
            with suppress(WinchError):
                operation.run(self._driver, self._settle(raised))
                self._finished()
            raise
        self._finished()

    # -- async handlers ----------------------------------------------------------------------------

    async def __aenter__(self) -> Transaction:
        atransaction = getattr(self._driver, "atransaction", None)
        if atransaction is None:
            return self.__enter__()  # raises with the reason
        ablock: AbstractAsyncContextManager[Any] = (
            atransaction(**self._limits())
            if self._session is None
            else atransaction(self._session, **self._limits())
        )
        self._ablock = ablock
        self.connection = await ablock.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        ablock = self._ablock
        if ablock is None:
            self.__exit__(kind, error, frames)
            return
        if kind is not None:
            await ablock.__aexit__(kind, error, frames)
            return
        try:
            verb = self._driver.finish([self._outcome()])
            self._check(await self._driver.arun_on(self.connection, verb))
        except BaseException:
            await ablock.__aexit__(*sys.exc_info())
            raise
        try:
            await ablock.__aexit__(None, None, None)
        except StorageUnavailable as lost:
            if not lost.maybe_applied:
                raise
            await self._asettle(lost)
        except Exception as raised:
            with suppress(WinchError):
                await self._asettle(raised)
                self._finished()
            raise
        self._finished()

    async def _asettle(self, error: Exception) -> None:
        import asyncio  # async handlers have it already; producers must not pay for it

        await asyncio.shield(operation.arun(self._driver, self._settle(error)))

    # -- both --------------------------------------------------------------------------------------

    def _limits(self) -> dict[str, float]:
        """A part of the lease, on stores with one writer: heartbeats must get through."""
        share = getattr(self._driver, "transaction_share", None)
        return {} if self._lease is None or share is None else {"limit": self._lease * share}

    def _outcome(self) -> Finish:
        result = self.result
        text = None if result is None else self._seal(codec.dumps_result(result))
        return Finish(
            id=self._claim.id,
            token=self._claim.token,
            to=JobState.COMPLETED,
            what="completed",
            result=text,
            is_gated=self._has_gates,
        )

    def _check(self, answers: list[Answer]) -> None:
        if answers != [Answer.TOOK]:
            raise self._lost()

    def _settle(self, lost: Exception) -> Operation[None]:
        """Return when the transaction took effect; raise when it did not, or when that is unknown."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            try:
                [standing] = yield self._driver.standing([self._claim])
            except StorageError as error:
                if time.monotonic() > deadline:
                    raise StorageUnavailable(
                        f"whether job {self._claim.id} is committed could not be determined: {error}",
                        maybe_applied=True,
                    ) from lost
                yield Sleep(SETTLE_PAUSE)
                continue
            if standing is Standing.ENDED:
                return
            if standing is Standing.LIVE:
                raise StorageUnavailable(
                    f"the transaction of job {self._claim.id} was not committed: {lost}"
                ) from lost
            raise self._lost() from lost

    def _lost(self) -> LostClaim:
        return LostClaim(
            f"job {self._claim.id} is no longer this attempt's; its transaction was rolled back"
        )
