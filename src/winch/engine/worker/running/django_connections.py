"""Django's database connections around a function, where the application has loaded Django.

A request in Django begins and ends with `close_old_connections`: it closes a connection that broke or
is older than CONN_MAX_AGE. A job is such a unit of work too. Without the call, one lost connection makes
every later job of its thread fail. A worker without Django pays for one look at the loaded modules.

Coroutines of Django's tasks do the same in `winch.integrations.django.handlers`.
"""

from __future__ import annotations

import sys
from types import ModuleType

from winch.engine.base.log import log

DJANGO = "django.db"
"""A worker looks for this module before it calls anything here."""


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
