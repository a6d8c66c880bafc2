"""The background loops of one process, and what happens when one of them ends.

A process whose loop has ended looks healthy: its lease is live, its port answers, and some part of its
work never happens again. So no loop may end unnoticed. A worker or supervisor that loses one logs the
traceback, gives its jobs back, and exits with EX_BROKEN; a fresh process replaces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from winch.core.errors import WinchError
from winch.engine.base.log import log
from winch.engine.base.service import Service

EX_BROKEN = 71  # a loop of this process has ended
# Every background task and thread of Winch, those of the drivers too, has a name that begins so.
PREFIX = "winch"


class LoopEnded(WinchError):
    """A loop ended that should have run as long as its process; the cause is in `__cause__`."""

    def __init__(self, name: str, cause: BaseException | None) -> None:
        why = "it returned" if cause is None else f"{type(cause).__name__}: {cause}"
        super().__init__(
            f"the {name} loop has ended ({why}); this process cannot do its work without it"
        )
        self.__cause__ = cause


class Loops:
    """Tasks that run until `stop`. `on_end` hears of each that ends before."""

    def __init__(self, on_end: Callable[[LoopEnded], None]) -> None:
        self._on_end = on_end
        self._tasks: dict[asyncio.Task[None], Callable[[], bool]] = {}
        self._is_stopping = False

    def start(
        self,
        name: str,
        work: Coroutine[Any, Any, None],
        *,
        may_return: Callable[[], bool] = lambda: False,
    ) -> asyncio.Task[None]:
        """Run `work` as a task. An error always counts as an unforeseen end, a return unless
        `may_return`."""
        task = asyncio.create_task(work, name=f"{PREFIX} {name}")
        self._tasks[task] = may_return
        task.add_done_callback(self._ended)
        return task

    def serve(self, service: Service) -> asyncio.Task[None]:
        """Run a service; it may return once it has been stopped."""
        return self.start(service.name, service.run(), may_return=lambda: service.is_stopping)

    def _ended(self, task: asyncio.Task[None]) -> None:
        may_return = self._tasks.pop(task, None)
        if may_return is None:  # by `cancel`
            return
        if task.cancelled():
            cause: BaseException | None = asyncio.CancelledError("it was cancelled from outside")
        else:
            cause = task.exception()
        if self._is_stopping or (cause is None and may_return()):
            return
        self._on_end(LoopEnded(task.get_name().removeprefix(f"{PREFIX} "), cause))

    def cancel(self, task: asyncio.Task[None]) -> None:
        """End this one."""
        self._tasks.pop(task, None)
        task.cancel()

    def forget(self) -> None:
        """From now on any loop may end."""
        self._is_stopping = True

    async def stop(self) -> None:
        """End all of them."""
        self.forget()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def log_ended(ended: WinchError, what: str) -> None:
    """Log what broke this process, with the traceback of its cause."""
    log.critical("%s. %s", ended, what, exc_info=ended.__cause__)


@contextlib.contextmanager
def threads_watched(on_end: Callable[[LoopEnded], None]) -> Iterator[None]:
    """Within the block `on_end` hears, in this event loop, of each thread of Winch that an error ends.

    Other threads' errors go where they went before.
    """
    loop, before = asyncio.get_running_loop(), threading.excepthook

    def hook(args: threading.ExceptHookArgs, /) -> None:
        name = "" if args.thread is None else args.thread.name
        if not name.startswith(f"{PREFIX}-"):
            before(args)
            return
        ended = LoopEnded(name.removeprefix(f"{PREFIX}-"), args.exc_value)
        try:
            loop.call_soon_threadsafe(on_end, ended)
        except RuntimeError:  # the loop has closed, so has the worker
            before(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        if threading.excepthook is hook:
            threading.excepthook = before


def watch_tasks(on_end: Callable[[LoopEnded], None]) -> None:
    """Call `on_end` for each task of Winch that ends by an error and that no caller awaits: the
    drivers'. Only for a process that is Winch's own: it takes the event loop's exception handler."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        task, error = context.get("task"), context.get("exception")
        name = task.get_name() if isinstance(task, asyncio.Task) else ""
        if error is not None and name.startswith(f"{PREFIX}-"):
            on_end(LoopEnded(name.removeprefix(f"{PREFIX}-"), error))
        else:
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handle)
