"""`app.declare` and `app.push`: tasks that another process or another language runs; and `app.drain`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from winch.core.errors import ConfigError
from winch.engine.tasks.options import TaskOptions, check_queue, task_options

if TYPE_CHECKING:
    from winch.areas.launch.drain import DrainReport
    from winch.core.policy.retry import Retry
    from winch.core.values.duration import Duration
    from winch.engine.client.client import Client
    from winch.engine.tasks.runtime import Runtime
    from winch.engine.tasks.task import Task


class Declares:
    """What `App` declares tasks without code with."""

    client: Client
    runtime: Runtime

    def declare(self, name: str, schema: Mapping[str, Any], **options: Any) -> Task[..., Any]:
        """Declare a task without code, which a worker in another process or language runs:

            resize = app.declare("node.resize", {"properties": {"width": {"type": "integer"}}})
            resize.enqueue(width=100)

        `schema` is the JSON Schema of its arguments: an object whose properties are the arguments. A
        call that does not fit it raises InvalidPayload with the reason. `options` are those of
        `@app.task`, such as `queue`; `retry` and `timeout` travel with each job, for its worker. Workers
        of this app do not claim its jobs.
        """
        from winch.engine.tasks.declared import DeclaredTask, check_contract, stub_of

        for option in ("collect", "collect_wait", "isolate", "heartbeat"):
            if option in options:
                raise ConfigError(f"app.declare takes no {option}=: that is for the worker's own code")
        checked = task_options(options, TaskOptions.__struct_fields__)
        contract = check_contract(name, schema)
        task = DeclaredTask(self.client, name, stub_of(name, contract), checked)
        task.take_schema(contract)
        self.runtime.tasks.add(task)
        return task

    def push(
        self,
        queue: str,
        *,
        url: str,
        secret: str | bytes | Sequence[str | bytes],
        timeout: Duration = "30s",
        retry: Retry | None = None,
        allow_private: bool = False,
        ca_file: str | None = None,
    ) -> None:
        """Push the jobs of a queue to a URL: each is one signed POST, and a 2xx reply completes it.

            app.push("mail", url="https://mail.example.com/run", secret="whsec_…")

        A worker of the queue (`winch worker -Q mail`, or `winch serve --push`) holds the lease and sends
        the requests. Any other reply, or none within `timeout`, is a failed attempt. `retry` is the
        policy of jobs that have none of their own; without it, that of the task. Retry-After of the
        reply comes first. A 410 makes the job dead. `secret` is "whsec_" and base64, or bytes; with
        several, each signs.

        Requests go to HTTPS and public addresses only, unless `allow_private` is set for a service of
        your own. `ca_file` names a certificate authority of your own."""
        from winch.areas.push import PushTarget

        if check_queue(queue) in self.runtime.pushed:
            raise ConfigError(f"queue {queue!r} is pushed to a URL already")
        self.runtime.pushed[queue] = PushTarget(
            self.client,
            self.runtime,
            queue,
            url=url,
            secret=secret,
            timeout=timeout,
            retry=retry,
            allow_private=allow_private,
            ca_file=ca_file,
        )

    def drain(
        self,
        *,
        queues: Sequence[str] = ("default",),
        seconds: Duration | None = None,
        before: datetime | None = None,
        grace: Duration = "1s",
        concurrency: int | None = None,
    ) -> DrainReport:
        """Run jobs in this process until none is ready. For a timer, or a function in a cloud.

            report = app.drain(queues=["mail"], seconds="50s")

        It runs jobs for `seconds` at most, and ends `before` a moment if that is given. Then running
        handlers get `grace`. What has not ended goes back to its queue and loses no attempt. If a worker
        was killed, the call waits, within its time, until it may take over the jobs of that worker."""
        return asyncio.run(
            self.adrain(
                queues=queues, seconds=seconds, before=before, grace=grace, concurrency=concurrency
            )
        )

    async def adrain(
        self,
        *,
        queues: Sequence[str] = ("default",),
        seconds: Duration | None = None,
        before: datetime | None = None,
        grace: Duration = "1s",
        concurrency: int | None = None,
    ) -> DrainReport:
        """`drain` in an event loop that runs."""
        from winch.areas.launch.drain import drain

        return await drain(
            self,  # type: ignore[arg-type]  # an app
            queues=queues,
            seconds=seconds,
            before=before,
            grace=grace,
            concurrency=concurrency,
        )
