"""Tasks that a driver runs beside its verbs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Run `work` as a task. The event loop's exception handler hears at once of an error that ends it;
    asyncio alone reports it only when the task is collected."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_report)
    return task


async def stop(*tasks: asyncio.Task[None]) -> None:
    """End these, and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)  # what ended one before was reported then


def _report(task: asyncio.Task[None]) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        task.get_loop().call_exception_handler(
            {"message": f"{task.get_name()} has ended", "exception": error, "task": task}
        )
