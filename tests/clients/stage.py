"""Where scenarios are played: stores of the tests' own servers, and a real `winch serve` on each."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from tests.redis_servers import RedisServer
from tests.servers import Databases, PostgresServer
from winch import App
from winch.web.tokens import Tokens

STORES = ("sqlite", "postgres", "redis")
ROLES = ("read", "enqueue", "work", "operate")
# The sweeper of the server. A worker's own lease is its own.
SWEEP = 0.5
ENVIRONMENT = {"WINCH_LEASE": "2s", "WINCH_HEARTBEAT": "500ms", "WINCH_SWEEP": "500ms"}


class Stores:
    """Servers of PostgreSQL and Redis, started when a store is first wanted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._postgres: Databases | None = None
        self._own: list[PostgresServer | RedisServer] = []
        self._redis: str | None = None

    def new(self, store: str) -> str:
        """The URL of an empty store."""
        with self._lock:
            if store == "sqlite":
                return f"sqlite:///{self._folder}/winch-{next(self._numbers)}.db"
            if store == "redis":
                url = self._redis_url()
                return f"{url}{'&' if '?' in url else '?'}schema=clients{secrets.token_hex(6)}"
            return self._databases().new_store()

    def _databases(self) -> Databases:
        if self._postgres is None:
            if url := os.environ.get("WINCH_TEST_PG"):
                self._postgres = Databases(url)
            else:
                server = PostgresServer(fsync=False)
                server.start()
                self._own.append(server)
                self._postgres = server
        return self._postgres

    def _redis_url(self) -> str:
        if self._redis is None:
            self._redis = os.environ.get("WINCH_TEST_REDIS")
        if self._redis is None:
            server = RedisServer()
            server.start()
            self._own.append(server)
            self._redis = server.url
        return self._redis

    def close(self) -> None:
        if self._postgres is not None and not isinstance(self._postgres, PostgresServer):
            self._postgres.drop_all()
        for server in self._own:
            server.remove()


class Serving:
    """One `winch serve --auth` on a store of its own, which can be killed and started again."""

    def __init__(self, url: str, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.url = url
        self._folder = folder
        self._env = dict(env or {})
        self._process: subprocess.Popen[str] | None = None
        self._log = folder / f"serve-{secrets.token_hex(4)}.log"
        self.port: int | None = None
        self._lock = threading.Lock()
        self._app = App(url)
        self._app.migrate()
        self.admin, _ = self.new_token("admin", ("admin", *ROLES))

    def new_token(
        self,
        name: str,
        roles: Sequence[str],
        *,
        queues: Sequence[str] | None = None,
        tasks: Sequence[str] | None = None,
        tenant: str | None = None,
        expires: float | None = None,
    ) -> tuple[str, str]:
        """A token and its id."""
        with self._lock:
            made = Tokens(self._app.ready()).create(
                name,
                tuple(roles),
                queues=None if queues is None else tuple(queues),
                tasks=None if tasks is None else tuple(tasks),
                tenant=tenant,
                expires=None if expires is None else timedelta(seconds=expires),
            )
            text, kept = self._app.client.run(made)
            return text, kept.id

    def revoke(self, token_id: str) -> None:
        with self._lock:
            self._app.client.run(Tokens(self._app.ready()).revoke(token_id))

    def end_session(self, session_id: str) -> None:
        """Take a worker's session away, as if its heartbeats had not come through."""
        with self._lock:
            driver = self._app.ready()
            driver.run(driver.end_session(session_id))

    def start(self) -> None:
        command = [sys.executable, "-m", "winch", "serve", "--port", "0", "--auth", "--grace", "1"]
        env = {**os.environ, **ENVIRONMENT, **self._env, "WINCH_URL": self.url}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=env, cwd=self._folder
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise RuntimeError(f"winch serve does not come up:\n{self.log_tail()}")
        self.port = int(line.strip().rstrip("/").rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        self.port = None
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(20)
        finally:
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def close(self) -> None:
        self.stop()
        self._app.close()

    def request(
        self, method: str, path: str, body: Any = None, token: str | None = None
    ) -> httpx.Response:
        """A request of the harness itself."""
        headers = {"authorization": f"Bearer {token or self.admin}"}
        return httpx.request(
            method,
            f"http://127.0.0.1:{self.port}/api/v1{path}",
            json=body,
            headers=headers,
            timeout=30,
        )

    def log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])


class Stage:
    """Servers for scenarios: one for all that leave it alone, one of its own for each of the others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stores = Stores(folder)
        self._lock = threading.Lock()
        self._shared: dict[str, Serving] = {}

    def url(self, store: str) -> str:
        return self._stores.new(store)

    def shared(self, store: str) -> Serving:
        with self._lock:
            if store not in self._shared:
                serving = Serving(self._stores.new(store), self.folder)
                serving.start()
                self._shared[store] = serving
            return self._shared[store]

    @contextmanager
    def own(self, store: str, env: Mapping[str, str]) -> Iterator[Serving]:
        serving = Serving(self._stores.new(store), self.folder, env)
        try:
            serving.start()
            yield serving
        finally:
            serving.close()

    def close(self) -> None:
        for serving in self._shared.values():
            serving.close()
        self._stores.close()


@contextmanager
def stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="winch-clients-") as name:
        made = Stage(Path(name))
        try:
            yield made
        finally:
            made.close()
