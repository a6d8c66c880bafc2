"""Push targets: the jobs of a queue, each posted to a URL that runs it.

    app.push("mail", url="https://mail.example.com/run", secret="whsec_…")

A worker that serves the queue claims its jobs, of any task, and keeps the lease while it waits for the
answer. The receiver answers 2xx when the job is done; anything else is a failed attempt.

The request is signed by the Standard Webhooks rules, and the address is judged, looked up and connected
to by `http_post`, as for every other URL that a person chooses. The connection is never used twice and a
request never sent twice: each one belongs to a claim of its own, and its token tells it from others.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from winch.areas.sinks import MAX_RETRY_AFTER, secret_bytes
from winch.core.errors import ConfigError, DeliveryRefused
from winch.core.outcome import Discard, RetryAfter
from winch.core.policy.retry import Retry
from winch.core.values import codec
from winch.core.values.codec import MAX_ARGS_BYTES
from winch.core.values.duration import Duration, parse_duration
from winch.engine.base.http_post import post, signed, target
from winch.engine.tasks.arguments import MAX_GIVEN_BYTES, Arguments
from winch.engine.tasks.context import Context  # handlers are called with it, found by their annotations
from winch.engine.tasks.options import TaskOptions
from winch.engine.tasks.task import AsyncTask

if TYPE_CHECKING:
    from winch.core.job import Claim
    from winch.engine.client.client import Client
    from winch.engine.tasks.runtime import Runtime

LONGEST_TIMEOUT = 1800.0
MOST_TASKS = 1024
# What a push takes from the task, where this process has it.
OF_TASK = ("retry", "timeout", "breaker", "retry_budget", "scope", "slots")
# What a member of a flow takes from those before it, kept before its arguments. No JSON begins so.
_INPUT = "input:"
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(r"[ -~]{1,512}")


class PushTarget:
    """Where the jobs of one queue go."""

    def __init__(
        self,
        client: Client,
        runtime: Runtime,
        queue: str,
        *,
        url: str,
        secret: str | bytes | Sequence[str | bytes],
        timeout: Duration,
        retry: Retry | None,
        allow_private: bool,
        ca_file: str | None,
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._queue = queue
        self._target = target(
            url,
            allow_private=allow_private,
            what="a push target",
            allowing="app.push(…, allow_private=True)",
        )
        given = [secret] if isinstance(secret, str | bytes) else list(secret)
        if not given:
            raise ConfigError(f"requests for queue {queue!r} are signed: give a secret, or several")
        self._secrets = [secret_bytes(one, "a push target") for one in given]
        self._timeout = parse_duration(timeout, "timeout").total_seconds()
        if not 0 < self._timeout <= LONGEST_TIMEOUT:
            raise ConfigError(f"the timeout of a push target must be up to 30m, got {timeout!r}")
        self._retry = retry
        self._ca_file = ca_file
        self._context: ssl.SSLContext | None = None
        self._tasks: dict[tuple[str, int], PushTask] = {}

    def task_of(self, claim: Claim) -> PushTask:
        """The task that posts this job: it has the policy of the job's own task, where this code knows
        that."""
        known = self._tasks.get((claim.task, claim.version))
        if known is not None:
            return known
        if len(self._tasks) >= MOST_TASKS:
            self._tasks.clear()
        options = TaskOptions(queue=self._queue, version=claim.version, timeout=None)
        if claim.task in self._runtime.tasks:
            own = self._runtime.tasks.get(claim.task).options
            options = msgspec.structs.replace(options, **{name: getattr(own, name) for name in OF_TASK})
        if self._retry is not None:
            options = msgspec.structs.replace(options, retry=self._retry)
        made = self._tasks[claim.task, claim.version] = PushTask(self._client, claim, options, self)
        return made

    async def post_job(self, version: int, text: str, ctx: Context) -> None:
        """Post one job. Returns when the receiver has run it; raises what the attempt comes to."""
        body = _body(version, text, ctx)
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": "winch",
            "Winch-Job": ctx.job_id,
            "Winch-Attempt": str(ctx.attempt),
            "Winch-Token": ctx.claim_ref.token,
            "Winch-Fence": str(ctx.fence),
            **_trace(ctx.headers),
            **signed(body, ctx.job_id, *self._secrets),
        }
        if self._context is None and self._target.is_encrypted:
            self._context = ssl.create_default_context(cafile=self._ca_file)
        host = self._target.host
        try:
            reply = await post(self._target, body, headers, timeout=self._timeout, context=self._context)
        except TimeoutError as error:
            raise TimeoutError(f"{host} did not answer within {self._timeout:g} s") from error
        if 200 <= reply.status < 300:
            return
        answer = f"{host} answered {reply.status}"
        if reply.status == 410:
            raise Discard(f"{answer}: the receiver refuses such jobs")
        refused = DeliveryRefused(answer)
        if reply.retry_after is not None:
            raise RetryAfter(f"{min(reply.retry_after, MAX_RETRY_AFTER)}s", answer) from refused
        raise refused


class PushTask(AsyncTask[Any, None]):
    """Posts the jobs of one task, of one version of its arguments: the receiver reads them, so they stay
    as they are."""

    arguments: Arguments

    def __init__(self, client: Client, claim: Claim, options: TaskOptions, to: PushTarget) -> None:
        version = claim.version

        async def post_job(text: str, *, ctx: Context) -> None:
            await to.post_job(version, text, ctx)

        super().__init__(client, claim.task, post_job, options)
        self.arguments = PushArguments(claim.task, post_job, MAX_ARGS_BYTES)


class PushArguments(Arguments):
    """The arguments as they are stored: one text."""

    def unpack(self, text: str) -> tuple[Sequence[Any], dict[str, Any]]:
        return [text], {}

    def completed(self, text: str, value: Any) -> str:
        given = codec.dumps(value, what=f"the input of {self._task}", limit=MAX_GIVEN_BYTES)
        return f"{_INPUT}{given}\n{text}"


class PushedJob(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request."""

    id: str
    task: str
    version: int
    queue: str
    attempt: int
    token: str
    fence: int
    created_at: str
    args: msgspec.Raw
    input: msgspec.Raw
    headers: dict[str, str]


def _body(version: int, text: str, ctx: Context) -> bytes:
    value = "null"
    if text.startswith(_INPUT):
        value, _, text = text.removeprefix(_INPUT).partition("\n")
    return msgspec.json.encode(
        PushedJob(
            id=ctx.job_id,
            task=ctx.task,
            version=version,
            queue=ctx.queue,
            attempt=ctx.attempt,
            token=ctx.claim_ref.token,
            fence=ctx.fence,
            created_at=ctx.created_at.isoformat().replace("+00:00", "Z"),
            args=msgspec.Raw(text.encode()),
            input=msgspec.Raw(value.encode()),
            headers=ctx.headers,
        )
    )


def _trace(headers: Mapping[str, str]) -> dict[str, str]:
    """The trace of the job, if it is one: a producer may have stored any text."""
    parent, state = headers.get("traceparent", ""), headers.get("tracestate", "")
    if not _TRACEPARENT.fullmatch(parent):
        return {}
    return {"traceparent": parent} | ({"tracestate": state} if _TRACESTATE.fullmatch(state) else {})
