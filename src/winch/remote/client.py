"""Requests to a server, tried again while the server is out of reach; and the calls of a producer."""

from __future__ import annotations

import base64
import http.client
import json
import random
import socket
import ssl
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

PREFIX = "/api/v1"
# Seconds before the second try, doubled for each further one, up to the greatest; each drawn from the
# whole range, so that many clients do not come back at the same moment.
FIRST_PAUSE, GREATEST_PAUSE = 0.1, 5.0
PATIENCE = 30.0
AGAIN = (429, 502, 503, 504)

_rng = random.Random()  # noqa: S311  # pauses, not secrets


class RemoteError(Exception):
    """A request that the server refused, or that found no server: `status` is 0 then."""

    def __init__(self, status: int, code: str, detail: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{status} {code}: {detail}" if status else detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.retry_after = retry_after
        """For how many seconds the server wants the client to wait."""


class RemoteClient:
    """A server and the token for it. Safe from any thread: each has a connection of its own.

    Proxies come from the environment (`HTTPS_PROXY`, `NO_PROXY`), as everywhere. `context` replaces the
    verification of TLS, for a private authority.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        context: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the address of a server is like https://jobs.example.com")
        self._parts = parts
        self._token = token
        self._timeout = timeout
        self._context = context
        self._local = threading.local()
        self._open: dict[int, http.client.HTTPConnection] = {}  # by thread

    def __repr__(self) -> str:  # without the token
        return f"<RemoteClient {self._parts.scheme}://{self._parts.hostname}>"

    # -- produce -----------------------------------------------------------------------------------

    def enqueue(self, task: str, args: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Store a job and return its id. `options` are the fields of `POST /jobs`: queue, delay, … A try
        that may have worked is repeated with the same id, so there is one job."""
        body = {"task": task, "args": dict(args or {}), "id": str(uuid.uuid4()), **options}
        job_id: str = self.ask("POST", "/jobs", body)["id"]
        return job_id

    def enqueue_many(self, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
        """Store jobs, each with the fields of `POST /jobs`; returns their ids in the same order."""
        named = [{"id": str(uuid.uuid4()), **job} for job in jobs]
        return [one["id"] for one in self.ask("POST", "/jobs:bulk", {"jobs": named})["jobs"]]

    def get(self, job_id: str) -> dict[str, Any]:
        """The job as the server knows it."""
        found: dict[str, Any] = self.ask("GET", f"/jobs/{quote(job_id)}")
        return found

    def cancel(self, job_id: str, reason: str | None = None) -> None:
        """Cancel a job; one that runs is asked to stop."""
        self.ask("POST", f"/jobs/{quote(job_id)}/cancel", {"reason": reason})

    def retry(self, job_id: str) -> None:
        """Make a job that failed, died or was cancelled ready now."""
        self.ask("POST", f"/jobs/{quote(job_id)}/retry", {})

    def result(self, job_id: str, timeout: float = 60.0) -> Any:
        """What the job returned, once it is final. Raises RemoteError for one that did not complete, and
        TimeoutError."""
        until, pause = time.monotonic() + timeout, 0.05
        while True:
            found = self.ask("GET", f"/jobs/{quote(job_id)}/result")
            if found["state"] == "completed":
                return found["result"]
            if found["state"] in ("dead", "cancelled"):
                message = (found["error"] or {}).get("message", "")
                raise RemoteError(200, found["state"], f"job {job_id} is {found['state']}: {message}")
            if time.monotonic() + pause > until:
                raise TimeoutError(f"job {job_id} is {found['state']} after {timeout:g} s")
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    # -- requests ----------------------------------------------------------------------------------

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        patience: float = PATIENCE,
        wait: float = 0.0,
        limit: float | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Any:
        """One request and the data of its answer. It is sent again, with the same body, for so many
        seconds while no server answers; with `patience=0` never. `wait`: how long the server may take
        on purpose. `limit`: how long one try may take, where that is less than the client's timeout."""
        timeout = min(self._timeout, self._timeout if limit is None else limit) + wait
        until, pause = time.monotonic() + patience, FIRST_PAUSE
        while True:
            try:
                status, answer, after = self._once(method, path, body, timeout)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                problem = RemoteError(0, "unreachable", f"no answer from {self!r}: {error}")
            else:
                if status < 300:
                    return answer
                code, detail = str(answer.get("code", "")), str(answer.get("detail", ""))
                problem = RemoteError(status, code, detail, after)
                if status not in AGAIN:
                    raise problem
            delay = problem.retry_after + _rng.uniform(0, pause)
            if time.monotonic() + delay > until or is_over():
                raise problem
            time.sleep(delay)
            pause = min(pause * 2, GREATEST_PAUSE)

    def _once(
        self, method: str, path: str, body: Any, timeout: float
    ) -> tuple[int, dict[str, Any], float]:
        connection = self._connection()
        headers = {"accept": "application/json"}
        if self._parts.scheme == "http" and (proxy := self._proxy()):
            headers |= _proxy_headers(_split(proxy))
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            data = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
            headers["content-type"] = "application/json"
        url = f"{self._base}{self._parts.path.rstrip('/')}{PREFIX}{path}"
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        else:
            connection.timeout = timeout
        connection.request(method, url, data, headers)
        response = connection.getresponse()
        text = response.read()
        after = response.headers.get("retry-after", "")
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = {"detail": f"the answer is no JSON ({response.status})"}
        if response.will_close:
            self.close()
        return response.status, answer, float(after) if after.isdecimal() else 0.0

    @property
    def _base(self) -> str:
        """What stands before the path in a request: the whole address for a proxy of plain HTTP."""
        if self._proxy() is None or self._parts.scheme == "https":
            return ""
        return f"http://{self._parts.netloc.rpartition('@')[2]}"

    def _proxy(self) -> str | None:
        host = self._parts.hostname or ""
        if urllib.request.proxy_bypass(host):
            return None
        return urllib.request.getproxies().get(self._parts.scheme)

    def _connection(self) -> http.client.HTTPConnection:
        known: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if known is not None:
            return known
        made = self._local.connection = self._open[threading.get_ident()] = self._connect()
        return made

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        proxy = self._proxy()
        is_tls = self._parts.scheme == "https"
        via = _split(proxy) if proxy else None
        to, at = (host, port) if via is None else (via.hostname or "", via.port)
        if is_tls:
            context = self._context or ssl.create_default_context()
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                to, at, timeout=self._timeout, context=context
            )
        else:
            made = http.client.HTTPConnection(to, at, timeout=self._timeout)
        if via is not None and is_tls:
            made.set_tunnel(host, port, _proxy_headers(via))
        return made

    def close(self) -> None:
        """Close this thread's connection; the next request opens another one."""
        known: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if known is not None:
            known.close()
            self._local.connection = None
            self._open.pop(threading.get_ident(), None)

    def interrupt(self, thread: int) -> None:
        """Cut the connection of another thread, by its identifier: a request that waits fails now."""
        connection = self._open.get(thread)
        if connection is not None and connection.sock is not None:
            # The plain socket's own method: that of TLS is not for a thread that does not read.
            with suppress(OSError):
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)


def _split(proxy: str) -> SplitResult:
    """The address of a proxy, as people write it in the environment."""
    return urlsplit(proxy if "//" in proxy else f"//{proxy}")


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    """What a proxy that wants a password is sent: with CONNECT, or with each request of plain HTTP."""
    if not proxy.username:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"proxy-authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
