"""A worker that knows Winch only over HTTP: it claims, works, and completes, until it is stopped.

    python -m lab.http_worker PORT

What it is not answered it asks again, as a worker in any language would: a completion names its token,
so a second one changes nothing.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import time
from typing import Any

from lab.history import Recorder
from lab.history.lines import Ended, Stamp, Started

QUEUE = "http"
LEASE = "6s"
# A store that is killed again and again on a busy machine is in recovery most of the time. What is never
# answered ends with its lease, and is judged as any other job; this is to see that the server lives.
TIMEOUT, PATIENCE = 10.0, 300.0


class HttpWorker:
    def __init__(self, port: int, recorder: Recorder) -> None:
        self._port = port
        self._recorder = recorder
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.is_set():
            status, body = self._post(
                f"queues/{QUEUE}/claim",
                {"max": 2, "lease": LEASE, "wait": "1s", "worker": "lab over HTTP"},
            )
            jobs = body["jobs"] if status == 200 else []
            for job in jobs:
                self._work(job)
            if status != 200:
                self.is_over.wait(0.3)

    def _work(self, job: dict[str, Any]) -> None:
        about = {"run": os.urandom(8).hex(), "job": job["id"], "token": job["token"]}
        self._recorder.write(Started(**_now(), **about, attempt=job["attempt"]))
        time.sleep(job["args"]["seconds"])
        self._recorder.write(Ended(**_now(), **about, is_ok=True))
        # 404: the store was set back to a time before this job. 409: the claim has ended meanwhile.
        end, statuses = time.monotonic() + PATIENCE, list[int]()
        while not statuses or statuses[-1] not in (200, 404, 409):
            if statuses:
                time.sleep(0.3)
            if time.monotonic() > end:
                raise TimeoutError(
                    f"job {job['id']}: no answer for {PATIENCE:g} s, only {statuses[-20:]}"
                )
            statuses.append(self._post(f"jobs/{job['id']}/complete", {"token": job["token"]})[0])

    def _post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """The status and the body of the answer; 0 without an answer."""
        wire = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT)
        try:
            wire.request(
                "POST", f"/api/v1/{path}", json.dumps(body), {"Content-Type": "application/json"}
            )
            answer = wire.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        except (OSError, http.client.HTTPException, ValueError):
            return 0, None
        finally:
            wire.close()


def _now() -> Stamp:
    return {"pid": os.getpid(), "mono": time.monotonic(), "wall": time.time()}


def main(port: str) -> None:
    recorder = Recorder.from_env()
    assert recorder is not None
    worker = HttpWorker(int(port), recorder)
    signal.signal(signal.SIGTERM, lambda *_: worker.is_over.set())
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
