"""Virtual worlds on Redis: each verb is carried out by the reference and by Redis, at the same moment of
virtual time, and both must answer alike.

    python -m pytest -p tests.engine.mirror tests/engine/test_flows.py

Then every virtual world of those tests has a mirror. `WINCH_TEST_REDIS` names a server; else the module
starts one.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from tests.redis_servers import RedisServer
from winch.core.errors import WinchError
from winch.core.job import JobRecord
from winch.core.values.clock import Clock
from winch.drivers.connect import redis_class
from winch.storage.protocol import Storage
from winch.storage.verbs import Verb
from winch.testing import _world
from winch.testing._store import VirtualStore

VERBS = [name for name, _ in inspect.getmembers(Storage, inspect.isfunction) if name[0] != "_"]
assert len(VERBS) > 40
# Their answers may come in any order.
UNORDERED = {"cancels", "end_session"}
# `depth` may know no age; `explain` and `queues` may look less far.
UNCOMPARED = {"depth"}


class Mirror(VirtualStore):
    """The reference, with Redis beside it."""

    url = ""
    calls = 0

    def __init__(self, clock: Clock, is_served: Callable[[JobRecord], bool]) -> None:
        super().__init__(clock, is_served)
        self._is_inside = False  # verbs of the reference use each other; Redis has the whole one
        self._other = redis_class(self.url).from_url(self.url, schema="mirror", events=True)
        self._other.erase()
        # A driver has the methods of its families on itself, before those of its class.
        for name in VERBS:
            setattr(self, name, self._mirrored(name, getattr(self, name)))

    def _mirrored(self, name: str, own: Callable[..., Verb[Any]]) -> Callable[..., Verb[Any]]:
        return lambda *args, **given: self.both(name, own(*args, **given), args, given)

    def both(
        self, name: str, mine: Verb[Any], args: tuple[Any, ...], given: dict[str, Any]
    ) -> Verb[Any]:
        if self._is_inside:
            return mine
        method = getattr(self._other, name)
        if "now" in inspect.signature(method).parameters and given.get("now") is None:
            given = {**given, "now": self._base.now(None)}

        def steps() -> Generator[Any, Any, Any]:
            type(self).calls += 1
            answer: Any = None
            error: WinchError | None = None
            self._is_inside = True
            try:
                answer = yield from mine.steps()
            except WinchError as raised:
                error = raised
            finally:
                self._is_inside = False
            if error is not None:
                with pytest.raises(type(error)):
                    self._other.run(method(*args, **given))
                raise error
            other = self._other.run(method(*args, **given))
            if name in UNORDERED:
                assert sorted(answer, key=repr) == sorted(other, key=repr), f"{name} {args} {given}"
            elif name not in UNCOMPARED:
                assert answer == other, f"{name} {args} {given}"
            return answer

        return Verb(mine.name, steps, mine.is_read)

    def close(self) -> None:
        super().close()
        self._other.close()


@contextmanager
def mirrored() -> Iterator[type[Mirror]]:
    """Worlds that are made in here have Redis beside them."""
    url, server = os.environ.get("WINCH_TEST_REDIS"), None
    if url is None:
        server = RedisServer()
        server.start()
    Mirror.url, Mirror.calls = url or server.url, 0  # type: ignore[union-attr]  # one of them is there
    try:
        with mock.patch.object(_world, "VirtualStore", Mirror):
            yield Mirror
    finally:
        if server is not None:
            server.remove()


@pytest.fixture(autouse=True, scope="session")
def _worlds() -> Iterator[None]:
    with mirrored():
        yield
