"""Django's database connections around a handler, where the application has loaded Django.

A request in Django begins and ends with `close_old_connections`: it closes a connection that broke or
is older than CONN_MAX_AGE. A job is such a unit of work too. Without the call, one lost connection makes
every later job of its thread fail. A worker without Django pays for one look at the loaded modules.

The check of a function runs in the function's own thread. Coroutines query the database in a thread of
asgiref, which all of them share. Their check begins with the first connection there: until then there is
nothing to close, and coroutines that leave Django's database alone keep their fast path.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType
from weakref import WeakSet

from winch.engine.base.log import log

DJANGO = "django.db"
"""A worker looks for this module before it calls anything here."""
THREAD = "winch-"
"""How the names of a worker's threads begin."""


def close_old() -> None:
    """Close the connections of this thread that are broken or too old."""
    database = _database()
    if database is not None:
        try:
            database.close_old_connections()
        except Exception:  # the job's own outcome counts
            log.exception("Django's old connections could not be closed")


def _database() -> ModuleType | None:
    database = sys.modules.get(DJANGO)
    if database is None or not hasattr(database, "close_old_connections"):
        return None
    return database if sys.modules["django.conf"].settings.configured else None


class CoroutineConnections:
    """Whether coroutines of this process have connected to Django's database."""

    def __init__(self) -> None:
        self.are_used: bool = False
        self._is_watching = False
        self._watchers: WeakSet[FirstUse] = WeakSet()

    def watch(self, on_first_use: FirstUse) -> None:
        """Look out for the first connection, where Django is loaded; then call `on_first_use`."""
        self._watchers.add(on_first_use)
        if not self._is_watching and _database() is not None:
            from django.db.backends.signals import connection_created

            self._is_watching = True
            connection_created.connect(self._connected, weak=False, dispatch_uid="winch.coroutines")

    def _connected(self, **_: object) -> None:
        thread = threading.current_thread()
        if self.are_used or thread is threading.main_thread() or thread.name.startswith(THREAD):
            return
        self.are_used = True
        for watcher in list(self._watchers):
            watcher.act()

    async def aclose_old(self) -> None:
        """`close_old` in the thread in which Django runs the queries of coroutines."""
        if self.are_used:
            from asgiref.sync import sync_to_async  # Django brings it

            await sync_to_async(close_old)()


class FirstUse:
    """What to do when coroutines begin to use Django's database. It may come from any thread."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act: Callable[[], None] = act


of_coroutines: CoroutineConnections = CoroutineConnections()
