"""The idempotency store: outside effects that must not happen twice, by a key.

    with app.idempotency.begin("charge:42", ttl="24h") as once:
        if once.new:
            once.result = provider.charge(42, key=once.key)
        elif once.open:
            raise RetryAfter("10s", f"{once.holder} is at it")
    receipt = once.result

The first caller sees `new`, and its `result` is stored when the block ends. Later callers
see `done` and that result. While the first one works, others see `open` and the holder. When
the block raises, or its process dies, the fate of the effect is unknown, so the key stays open; a
later attempt of the same job (a handler that takes its Context) takes it over and is `new` again, for
others it is free when `ttl` is over. Give the key to the other side as well, where it has such a thing.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, Self

from winch.core.errors import ConfigError, LostClaim
from winch.core.values import codec
from winch.core.values.duration import Duration, parse_duration
from winch.core.values.ids import random_id
from winch.engine.base.current_job import current_job
from winch.engine.base.operation import Operation, until_answered
from winch.storage.kv_records import KvRecord

if TYPE_CHECKING:
    from datetime import timedelta

    from winch.engine.client.client import Client

BOOK = "idempotency"


class Idempotency:
    """`app.idempotency`: keep an effect outside the store from happening twice."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def begin(self, key: str, *, ttl: Duration = "24h") -> Once:
        """A block around an effect that must not happen twice; `async with` in async code.

            with app.idempotency.begin(f"charge:{order_id}", ttl="1d") as once:
                if once.new:
                    once.result = charge(order_id)

        The key is kept for `ttl` from the start of the block, and again from its end.
        """
        if not key.strip() or len(key) > codec.MAX_NAME_CHARS:
            raise ConfigError(
                f"an idempotency key must have 1 to {codec.MAX_NAME_CHARS} characters, got {key!r}"
            )
        codec.check_tree(key, "an idempotency key")
        return Once(self._client, key, parse_duration(ttl, "ttl"))

    def abegin(self, key: str, *, ttl: Duration = "24h") -> Once:
        """`begin`, by the name that async code expects: `async with app.idempotency.abegin(key)`."""
        return self.begin(key, ttl=ttl)


class Once:
    """The answer of `begin`: one of `new`, `done` (with `result`) and `open` (with `holder`) is True."""

    def __init__(self, client: Client, key: str, ttl: timedelta) -> None:
        self._client = client
        self._ttl = ttl
        self.key = key
        self.new: bool = False
        self.done: bool = False
        self.open: bool = False
        self.result: Any = None
        self.holder: str | None = None
        job = current_job.get()
        self._who = f"job {job}" if job is not None else f"{socket.gethostname()}:{os.getpid()}"
        token = random_id(client.surroundings.random_bytes(16))
        # Only an attempt of the same job may take over; any other caller is alone with its token.
        self._family = f"open\n{self._who}\n" if job is not None else f"open\n{self._who}\n{token}"
        self._mine = f"open\n{self._who}\n{token}"

    def __enter__(self) -> Self:
        self._read(self._client.run(self._begin()))
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None and self.new:
            self._client.run(self._end())

    async def __aenter__(self) -> Self:
        self._read(await self._client.arun(self._begin()))
        return self

    async def __aexit__(self, kind: object, *rest: object) -> None:
        if kind is None and self.new:
            await self._client.arun(self._end())

    def _begin(self) -> Operation[str | None]:
        there = yield from self._swap(self._mine, self._family)
        # A first try whose answer was lost has taken effect.
        return None if there == self._mine else there

    def _end(self) -> Operation[None]:
        text = codec.dumps(self.result, what="the result of an idempotency key")
        there = yield from self._swap(f"done\n{text}", self._mine)
        if there is not None and there != f"done\n{text}":
            raise LostClaim(
                f"idempotency key {self.key!r} was taken over by another job in the "
                "meantime; this result is not stored"
            )

    def _swap(self, body: str, instead_of: str) -> Operation[str | None]:
        driver = self._client.driver()
        line = KvRecord(book=BOOK, key=self.key, body=body, keep=self._ttl)

        def swap(is_repeat: bool) -> Operation[str | None]:
            found: str | None = yield driver.kv_swap(line, instead_of=instead_of)
            return found

        there, _ = yield from until_answered(swap)
        return there

    def _read(self, there: str | None) -> None:
        if there is None:
            self.new = True
            return
        state, _, rest = there.partition("\n")
        if state == "done":
            self.done = True
            self.result = codec.loads(rest, what="the kept result")
        else:
            self.open = True
            self.holder = rest.partition("\n")[0]
