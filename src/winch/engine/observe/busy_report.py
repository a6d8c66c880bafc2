"""Reports how many jobs a worker runs, so that a scaler removes idle workers first.

In Kubernetes the number is the pod's deletion cost: of two pods, a ReplicaSet removes the cheaper one.
Elsewhere it goes to a file or, as JSON, to an address. A report is a hint: no promise rests on it, and a
worker that is removed while it runs jobs gives them back as at every stop.

Each write costs the other side something. So the change between idle and busy is reported at once, and
any other change every ten seconds at most.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlsplit

from winch.core.errors import ConfigError
from winch.engine.base.log import log
from winch.engine.base.service import Service

LOOK_EVERY = 0.5
REPORT_EVERY = 10.0
TIMEOUT = 5.0
ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

Send = Callable[[int], None]


class BusyReport(Service):
    """Sends the number of running jobs when it changes."""

    name = "busy-report"
    is_vital = False

    def __init__(
        self,
        running: Callable[[], int],
        send: Send,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._running = running
        self._send = send
        self._monotonic = monotonic
        self._sent: int | None = None
        self._sent_at = float("-inf")
        self._is_failed = False

    async def run_once(self) -> float:
        running, now = self._running(), self._monotonic()
        is_edge = self._sent is None or bool(running) != bool(self._sent)
        is_due = now - self._sent_at >= REPORT_EVERY
        if running == self._sent or not (is_due or (is_edge and not self._is_failed)):
            return self.unasked(LOOK_EVERY)
        self._sent_at = now
        try:
            await asyncio.to_thread(self._send, running)
        except (OSError, http.client.HTTPException) as error:
            if not self._is_failed:
                log.warning("the number of running jobs is not reported, trying again: %s", error)
            self._is_failed = True
        else:
            self._sent, self._is_failed = running, False
        return self.unasked(LOOK_EVERY)


def sender(where: str) -> Send:
    """What sends to this place: `kubernetes`, an http(s) address, or the path of a file. Raises
    ConfigError."""
    kind, _, folder = where.partition(":")
    if kind == "kubernetes":
        return PodCost(Path(folder) if folder else ACCOUNT).send
    if kind in ("http", "https"):
        return BusyHook(where).send
    path = Path(where)
    if not where or not path.parent.is_dir():
        raise ConfigError(
            "--report-busy must be kubernetes, an http(s) URL, or a file in a folder that exists, "
            f"got {where!r}"
        )
    return CostFile(path).send


class CostFile:
    """Writes the number into a file that is always whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, running: int) -> None:
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        part.write_text(f"{running}\n")
        part.replace(self._path)


class BusyHook:
    """Posts the number as JSON to an address of the operator's own."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if not parts.hostname:
            raise ConfigError(f"--report-busy: the URL names no host: {url!r}")
        self._is_encrypted = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def send(self, running: int) -> None:
        body = {"host": socket.gethostname(), "pid": os.getpid(), "running": running}
        connection: http.client.HTTPConnection = (
            http.client.HTTPSConnection(
                self._host, self._port, timeout=TIMEOUT, context=ssl.create_default_context()
            )
            if self._is_encrypted
            else http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)
        )
        _request(connection, "POST", self._path, body, {"content-type": "application/json"})


class PodCost:
    """Writes the deletion cost of this pod, with the token and the CA that the pod has been given."""

    def __init__(self, account: Path) -> None:
        self._account = account
        self._host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not self._host or not port.isdecimal() or not (account / "token").is_file():
            raise ConfigError(
                "--report-busy kubernetes works in a pod with a service account whose token is "
                f"mounted: KUBERNETES_SERVICE_HOST and {account}/token must be there"
            )
        self._port = int(port)
        pod = os.environ.get("POD_NAME") or socket.gethostname()
        namespace = (account / "namespace").read_text().strip()
        self._path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}"

    def send(self, running: int) -> None:
        # Kubernetes replaces token and CA while the pod runs.
        token = (self._account / "token").read_text().strip()
        context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=TIMEOUT, context=context
        )
        body = {"metadata": {"annotations": {ANNOTATION: str(running)}}}
        headers = {
            "authorization": f"Bearer {token}",
            "content-type": "application/merge-patch+json",
            "accept": "application/json",
        }
        _request(connection, "PATCH", self._path, body, headers)


def _request(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: object,
    headers: dict[str, str],
) -> None:
    try:
        connection.request(method, path, json.dumps(body).encode(), headers)
        reply = connection.getresponse()
        if reply.status >= 300:
            words = reply.read(300).decode(errors="replace")
            raise OSError(f"{method} {path} was answered with {reply.status} {reply.reason}: {words}")
    finally:
        connection.close()
