"""Which store an entry of TASKS uses, and how its enqueues relate to Django's transactions.

By default the store is the Django database itself: for PostgreSQL a schema of its own beside Django's
tables, so that an enqueue inside `atomic()` is part of that transaction. SQLite gets a file of its own
beside Django's, and a database in memory a store in memory; there an enqueue waits for `on_commit`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit
from weakref import WeakSet

from django.conf import settings
from django.db import connections

from winch import App
from winch.errors import ConfigError

DEFAULT_DATABASE = "default"
JOIN, ON_COMMIT, NOW = "join", "on_commit", "now"
MODES = (JOIN, ON_COMMIT, NOW)
KNOWN = (
    "app",
    "url",
    "schema",
    "database",
    "transaction",
    "retry",
    "timeout",
    "retention",
    "modules",
    "migrate",
    "settings",
)
# Names in Django's OPTIONS of a database that libpq does not know.
_NOT_LIBPQ = frozenset(
    [
        "pool",
        "assume_role",
        "server_side_binding",
        "isolation_level",
        "prepare_threshold",
        "cursor_factory",
        "context",
        "row_factory",
    ]
)


@dataclass(frozen=True, slots=True)
class Store:
    """The app of one entry of TASKS, the Django database beside it, and how an enqueue is made."""

    app: App
    database: str
    mode: str

    @property
    def connection(self) -> Any:
        """Django's connection of this thread."""
        return connections[self.database]

    @property
    def joined(self) -> Any:
        """Django's connection, where verbs go through it; None: the app has connections of its own.

        A process of the web server then needs no connection beside Django's: the one that looks at the
        schema, once, is closed again."""
        if self.mode != JOIN:
            return None
        if self.app not in _looked_at:
            # Two threads may both do this. A lock would make all of them wait for a store that is down.
            self.app.ready()
            self.app.close()
            _looked_at.add(self.app)
        return self.connection


_apps: dict[tuple[str, str | None], App] = {}
_looked_at: WeakSet[App] = WeakSet()
_lock = threading.Lock()


def store_of(alias: str, options: Mapping[str, Any]) -> Store:
    """The store of an entry of TASKS, from its present OPTIONS: a test runner changes the databases."""
    check_options(alias, options)
    database = options.get("database", DEFAULT_DATABASE)
    app = _app(alias, options, database)
    mode = options.get("transaction") or (JOIN if is_shared(app, database) else ON_COMMIT)
    if mode == JOIN and app._driver is not None and not app._driver.capabilities.joins_transactions:
        mode = ON_COMMIT  # a test has put a store in memory in its place
    return Store(app, database, mode)


def app_of(alias: str = "default") -> App:
    """The Winch app behind an entry of TASKS: `app_of().jobs.list(state="dead")`."""
    from winch.integrations.django.api import task_backends

    app: App = task_backends[alias].store.app
    return app


def check_options(alias: str, options: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option that is unknown or cannot be."""
    for name in options:
        if name not in KNOWN:
            raise ConfigError(f"TASKS[{alias!r}]: no option {name!r}{_nearest(name)}")
    mode = options.get("transaction")
    if mode is not None and mode not in MODES:
        raise ConfigError(
            f"TASKS[{alias!r}]: transaction must be one of {', '.join(MODES)}, got {mode!r}"
        )


def _nearest(name: str) -> str:
    found = get_close_matches(name, KNOWN, 1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def _app(alias: str, options: Mapping[str, Any], database: str) -> App:
    from winch.integrations.django.discovery import prepare

    given = options.get("app") or (None if "url" in options else getattr(settings, "WINCH_APP", None))
    if given is not None:
        app = named_app(given)
        prepare(app, alias, options)
        return app
    url = options.get("url") or url_of(connections[database].settings_dict, database)
    key = (f"{alias}+{url}" if url.startswith("memory:") else url, options.get("schema"))
    found = _apps.get(key)
    if found is not None:
        return found
    with _lock:
        if key not in _apps:
            app = App(url, schema=options.get("schema"), **options.get("settings", {}))
            prepare(app, alias, options)
            _apps[key] = app
        return _apps[key]


def named_app(given: object) -> App:
    """The app itself, or the one at "module:attribute"."""
    found = given
    if isinstance(given, str):
        module, colon, name = given.partition(":")
        if not colon:
            raise ConfigError(f'name an app like "shop.jobs:app", got {given!r}')
        found = getattr(import_module(module), name)
    if not isinstance(found, App):
        raise ConfigError(f"{given!r} must name a winch.App, got {found!r}")
    return found


def close_all() -> None:
    """Close every connection that this process's apps hold; they open new ones when they need them."""
    for app in list(_apps.values()):
        app.close()


# -- where the store is --------------------------------------------------------------------------------


def url_of(database: Mapping[str, Any], alias: str) -> str:
    """The address of the store that belongs to this Django database."""
    engine = str(database.get("ENGINE", "")).rpartition(".")[2]
    name = str(database.get("NAME") or "")
    if engine in ("postgresql", "postgis") or "postgres" in engine:
        return _postgres_url(database, name)
    if engine in ("sqlite3", "spatialite"):
        path = _sqlite_file(name)
        if path is None:
            return "memory://"
        return f"sqlite:///{quote(str(path.with_name(f'{path.stem}-winch.sqlite3')))}"
    raise ConfigError(
        f"DATABASES[{alias!r}] is {database.get('ENGINE')}, which holds no jobs; give TASKS an OPTIONS "
        'with a "url" (postgresql://, redis:// or sqlite:///…)'
    )


def _sqlite_file(name: str) -> Path | None:
    """The file behind the NAME of a SQLite database; None for one in memory. Django takes URIs too."""
    if name in ("", ":memory:") or "mode=memory" in name or name.startswith("file::memory:"):
        return None
    if name.startswith("file:"):
        name = unquote(urlsplit(name).path)
    return Path(name).absolute()


def _postgres_url(database: Mapping[str, Any], name: str) -> str:
    user, password = str(database.get("USER") or ""), str(database.get("PASSWORD") or "")
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    host, port = str(database.get("HOST") or ""), str(database.get("PORT") or "")
    given = {
        key: str(value)
        for key, value in (database.get("OPTIONS") or {}).items()
        if key not in _NOT_LIBPQ and isinstance(value, str | int)
    }
    place = ""
    if host.startswith("/"):
        given["host"] = host
        if port:
            given["port"] = port
    elif host:
        place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    elif port:
        given["port"] = port
    query = f"?{urlencode(given)}" if given else ""
    return f"postgresql://{f'{login}@' if login else ''}{place}/{quote(name, safe='')}{query}"


def is_shared(app: App, database: str) -> bool:
    """Whether the jobs are in this Django database, so that an enqueue can join its transactions."""
    if connections[database].vendor == "sqlite":
        return sqlite_file(app) in _files([database]) and sqlite_fixed_in(app) is None
    url = app.settings.url
    given = connections[database].settings_dict
    if connections[database].vendor != "postgresql" or not url.startswith(("postgresql:", "postgres:")):
        return False
    return _place(url) == _place(_postgres_url(given, str(given.get("NAME") or "")))


def sqlite_fixed_in(app: App) -> str | None:
    """The release of SQLite that can share a file with Django; None: this one can, or no SQLite."""
    return getattr(_sqlite_driver(app), "fixed_in", None)


def sqlite_file(app: App) -> Path | None:
    """The file that holds the jobs, on SQLite."""
    path: Path | None = getattr(_sqlite_driver(app), "path", None)
    return None if path is None else path.resolve()


def _sqlite_driver(app: App) -> Any:
    url = app.settings.url
    return unopened(url) if url.startswith("sqlite:") else None


@lru_cache
def unopened(url: str) -> Any:
    """A driver that knows its address and is never opened: the app can still be configured.
    Raises ConfigError for an address that no driver takes, or whose driver is not installed."""
    return App(url).driver


def databases_in(path: Path) -> list[str]:
    """The entries of DATABASES that are this file."""
    return [alias for alias in connections if path in _files([alias])]


def _files(aliases: Sequence[str]) -> set[Path]:
    names = [
        str(connections[alias].settings_dict.get("NAME") or "")
        for alias in aliases
        if connections[alias].vendor == "sqlite"
    ]
    return {path.resolve() for name in names if (path := _sqlite_file(name)) is not None}


@lru_cache
def _place(url: str) -> tuple[str, str, str]:
    """Host, port and database: what makes two addresses the same database."""
    from psycopg.conninfo import conninfo_to_dict

    parts = urlsplit(url)
    kept = [
        piece
        for piece in parts.query.split("&")
        if piece and piece.partition("=")[0] not in ("schema", "timeout", "pool", "prepare")
    ]
    bare = parts._replace(query="&".join(kept)).geturl()
    found = {key: str(value) for key, value in conninfo_to_dict(bare).items() if value is not None}
    return found.get("host", "localhost"), found.get("port", "5432"), found.get("dbname", "")
