"""The part of the Kubernetes API that a worker calls: a PATCH of a pod, over TLS, with a token and RBAC.

What it refuses, the real API server refuses too: a wrong token (401), what no rule of the role allows
(403), an unknown pod (404), a patch of another kind than it names (415), and no JSON (400).
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.redis_tls import Authority

PODS = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods/(?P<name>[^/]+)")
MERGE = "application/merge-patch+json"


class KubernetesStandIn:
    """Pods of one namespace; `rules` are those of the role that the token's account has."""

    def __init__(self, folder: Path, pods: Sequence[str], rules: Sequence[dict[str, Any]]) -> None:
        self.folder = folder
        self.pods: dict[str, dict[str, str]] = {name: {} for name in pods}
        self.rules = list(rules)
        self.token = "first-token"  # of a stand-in
        self.log: list[tuple[float, str, int, str]] = []  # when, pod, status, cost
        self._lock = threading.Lock()
        folder.mkdir(exist_ok=True)
        ca, certificate, key = Authority("cluster").write(folder)
        ca.rename(folder / "ca.crt")
        (folder / "namespace").write_text("prod\n")
        self.rotate(self.token)
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PATCH(self) -> None:  # the name that http.server looks for
                length = int(self.headers.get("content-length", "0"))
                status, answer = stand_in.patch(self.path, dict(self.headers), self.rfile.read(length))
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...  # its name there

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def env(self) -> dict[str, str]:
        """What Kubernetes puts into the environment of every container."""
        port = self._server.server_address[1]
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}

    def rotate(self, token: str) -> None:
        """Replace the token, as Kubernetes does every hour."""
        self.token = token
        (self.folder / "token").write_text(token)

    def cost(self, pod: str) -> int | None:
        """The deletion cost of a pod; None while it has none."""
        with self._lock:
            text = self.pods[pod].get("controller.kubernetes.io/pod-deletion-cost")
        return None if text is None else int(text)

    def patch(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        named = {name.lower(): value for name, value in headers.items()}
        found = PODS.fullmatch(path)
        status, answer = self._patch(found, named, body)
        with self._lock:
            cost = "" if status != 200 else answer["metadata"]["annotations"].get(
                "controller.kubernetes.io/pod-deletion-cost", ""
            )  # fmt: skip
            self.log.append((time.monotonic(), found["name"] if found else path, status, cost))
        return status, answer

    def _patch(self, found: re.Match[str] | None, named: dict[str, str], body: bytes) -> tuple[int, Any]:
        if named.get("authorization") != f"Bearer {self.token}":
            return 401, {"kind": "Status", "message": "Unauthorized"}
        if not any(
            "" in rule["apiGroups"] and "pods" in rule["resources"] and "patch" in rule["verbs"]
            for rule in self.rules
        ):
            return 403, {"kind": "Status", "message": 'cannot patch resource "pods"'}
        if found is None or found["namespace"] != "prod" or found["name"] not in self.pods:
            return 404, {"kind": "Status", "message": "not found"}
        if named.get("content-type") != MERGE:
            return 415, {"kind": "Status", "message": "unsupported media type"}
        try:
            annotations = json.loads(body)["metadata"]["annotations"]
        except (ValueError, KeyError, TypeError):
            return 400, {"kind": "Status", "message": "not a patch"}
        if not all(isinstance(value, str) for value in annotations.values()):
            return 422, {"kind": "Status", "message": "annotations are texts"}
        with self._lock:
            self.pods[found["name"]].update(annotations)
            return 200, {
                "kind": "Pod",
                "metadata": {"name": found["name"], "annotations": dict(self.pods[found["name"]])},
            }

    def __enter__(self) -> KubernetesStandIn:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
