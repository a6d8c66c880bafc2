"""Lambda on this machine: the Runtime API over HTTP, a function under AWS's own runtime client, and the
poller of SQS that reads batch answers.

The process of a function is started and killed as Lambda does: kept between invocations, killed when an
invocation runs out of time, and started again for the next one.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VERSION = "/2018-06-01/runtime"
ARN = "arn:aws:sqs:eu-central-1:123456789012:jobs"


class FunctionFailed(Exception):
    """An invocation that ended with an error, a death of its process, or without time left."""


class _Request:
    def __init__(self, event: Any, seconds: float) -> None:
        self.id = str(uuid.uuid4())
        self.event = event
        self.seconds = seconds
        self.deadline = 0.0
        self.answer: Any = None
        self.error: str | None = None
        self.taken = threading.Event()
        self.over = threading.Event()


class RuntimeApi(ThreadingHTTPServer):
    """The HTTP API between Lambda and a runtime, for one process of a function at a time."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A runtime that is killed resets its connection."""

    def __init__(self) -> None:
        self.waiting: queue.Queue[_Request] = queue.Queue()
        self.current: _Request | None = None
        self.strange: list[str] = []
        super().__init__(("127.0.0.1", 0), _Api)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RuntimeApi

    def do_GET(self) -> None:
        if self.path != f"{VERSION}/invocation/next":
            return self._answer(404, {"errorMessage": self.path})
        api = self.server
        if api.current is not None:
            api.strange.append("the next event was asked for before the last one was answered")
        request: _Request | None = None
        while request is None:
            try:
                request = api.waiting.get(timeout=0.1)
            except queue.Empty:
                if self._is_gone():
                    return None
        api.current = request
        request.deadline = time.time() + request.seconds
        request.taken.set()
        return self._answer(
            200,
            request.event,
            {
                "Lambda-Runtime-Aws-Request-Id": request.id,
                "Lambda-Runtime-Deadline-Ms": str(int(request.deadline * 1000)),
                "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:eu-central-1:1:function:jobs",
                "Lambda-Runtime-Trace-Id": "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Sampled=1",
            },
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        api, parts = self.server, self.path.removeprefix(f"{VERSION}/").split("/")
        if parts == ["init", "error"]:
            request = api.current or api.waiting.get()
            request.error = body.decode()
        elif len(parts) == 3 and api.current is not None and parts[1] == api.current.id:
            request = api.current
            if parts[2] == "response":
                request.answer = json.loads(body)
            else:
                request.error = body.decode()
        else:
            api.strange.append(f"no such invocation: {self.path}")
            return self._answer(403, {"errorType": "InvalidRequestID"})
        api.current = None
        self._answer(202, {"status": "OK"})
        request.over.set()
        return None

    def _is_gone(self) -> bool:
        """Whether the runtime has closed its connection, which it does when it dies."""
        self.connection.setblocking(False)
        try:
            return not self.connection.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.connection.setblocking(True)

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: Any) -> None:
        pass


class Function:
    """A function and its process."""

    def __init__(self, api: RuntimeApi, folder: Path, url: str, name: str) -> None:
        self.api = api
        self._folder = folder
        self._url = url
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def invoke(self, event: Any, *, seconds: float = 30.0) -> Any:
        """What the function returns. Raises FunctionFailed."""
        request = self.begin(event, seconds=seconds)
        return self.end(request)

    def begin(self, event: Any, *, seconds: float = 30.0) -> _Request:
        if self._process is None or self._process.poll() is not None:
            self._start()
        request = _Request(event, seconds)
        self.api.waiting.put(request)
        if not request.taken.wait(30):
            raise AssertionError(f"the function took no event:\n{self.log}")
        return request

    def end(self, request: _Request) -> Any:
        assert self._process is not None
        while not request.over.wait(0.05):
            if self._process.poll() is not None:
                self.api.current = None
                raise FunctionFailed("the process of the function has died")
            if time.time() > request.deadline:
                self.kill()
                raise FunctionFailed("timed out")
        if request.error is not None:
            raise FunctionFailed(request.error)
        return request.answer

    def kill(self) -> None:
        """kill -9, as Lambda ends a process that has no time left."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        self.api.current = None

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    @property
    def log(self) -> str:
        return (self._folder / "function.log").read_text()

    def _start(self) -> None:
        self.starts += 1
        env = {key: value for key, value in os.environ.items() if not key.startswith("WINCH_")}
        env |= {
            "AWS_LAMBDA_RUNTIME_API": self.api.address,
            "AWS_LAMBDA_FUNCTION_NAME": "jobs",
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
            "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/jobs",
            "AWS_LAMBDA_LOG_STREAM_NAME": "1",
            "LAMBDA_TASK_ROOT": str(self._folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "WINCH_URL": self._url,
        }
        with (self._folder / "function.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "awslambdaric", self._name],
                cwd=self._folder,
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@contextmanager
def function(url: str, folder: Path, code: str, name: str = "shop.handler") -> Iterator[Function]:
    (folder / "shop.py").write_text(textwrap.dedent(code))
    api = RuntimeApi()
    thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    made = Function(api, folder, url, name)
    try:
        yield made
    finally:
        made.close()
        api.shutdown()
        thread.join()
        api.server_close()
    assert not api.strange


class Messages:
    """A queue of SQS and its poller: what an answer does not name is deleted, the rest comes again."""

    def __init__(self, to: Function, *, arn: str = ARN, most_receives: int = 3) -> None:
        self._to = to
        self._arn = arn
        self._most = most_receives
        self.kept: list[dict[str, Any]] = []
        self.buried: list[dict[str, Any]] = []

    def send(self, body: Any, *, group: str | None = None, **attributes: str) -> str:
        message = str(uuid.uuid4())
        record = {
            "messageId": message,
            "receiptHandle": uuid.uuid4().hex,
            "body": body if isinstance(body, str) else json.dumps(body),
            "attributes": {"ApproximateReceiveCount": "0"},
            "messageAttributes": {
                name: {"stringValue": value, "dataType": "String"} for name, value in attributes.items()
            },
            "md5OfBody": "",
            "eventSource": "aws:sqs",
            "eventSourceARN": self._arn,
            "awsRegion": "eu-central-1",
        }
        if group is not None:
            record["attributes"] |= {"MessageGroupId": group}  # type: ignore[operator]
        self.kept.append(record)
        return message

    def batch(self, most: int = 10) -> list[dict[str, Any]]:
        """The next messages, each received once more."""
        found = self.kept[:most]
        for one in found:
            counted = one["attributes"]
            counted["ApproximateReceiveCount"] = str(int(counted["ApproximateReceiveCount"]) + 1)
        return found

    def settled(self, batch: Sequence[dict[str, Any]], answer: Any) -> list[str]:
        """Delete what the answer does not name; the ids that it names. `None`: the invocation failed,
        and all of them come again."""
        ids = [one["messageId"] for one in batch]
        failed = (
            ids if answer is None else [one["itemIdentifier"] for one in answer["batchItemFailures"]]
        )
        assert set(failed) <= set(ids), "an answer that names another message fails as a whole"
        for one in batch:
            is_failed = one["messageId"] in failed
            if is_failed and int(one["attributes"]["ApproximateReceiveCount"]) < self._most:
                continue
            self.kept.remove(one)
            if is_failed:
                self.buried.append(one)
        return failed

    def poll(self, most: int = 10, *, seconds: float = 30.0) -> list[str]:
        """One batch through the function."""
        batch = self.batch(most)
        try:
            answer = self._to.invoke({"Records": batch}, seconds=seconds)
        except FunctionFailed:
            answer = None
        return self.settled(batch, answer)
