"""Winch over HTTP, for a process that does not reach the store: enqueue jobs, and run them.

    from winch.remote import RemoteClient, RemoteWorker

    client = RemoteClient("https://jobs.example.com", token="winch_…")
    job = client.enqueue("shop.mail", {"order": 7}, queue="mail")

    worker = RemoteWorker(client, queues=["mail"])

    @worker.task("shop.mail")
    def mail(ctx, order):
        return f"sent {order}"

    worker.run()

A handler may raise or return RetryAfter, Snooze, Discard or Cancel, as with `@app.task`. A long one
calls `ctx.check()` now and then: it raises Stopped when the job was cancelled, is no longer its own, or
takes longer than its timeout.
"""

from winch.remote.client import RemoteClient, RemoteError
from winch.remote.context import RemoteContext, Stopped
from winch.remote.worker import RemoteWorker

__all__ = ["RemoteClient", "RemoteContext", "RemoteError", "RemoteWorker", "Stopped"]
