"""The stacks of a process as text: its threads, its coroutines and the jobs that run."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback
from collections.abc import Sequence

from winch.engine.worker.attempt import Attempt

# An answer with stacks is a small record: this much of it is kept.
MOST_CHARS = 200_000


def stacks_text(attempts: Sequence[Attempt], *, is_blocked: bool = False) -> str:
    """All stacks of this process, most recent call last. Call it in the event loop; or, if that
    `is_blocked`, in another thread: then the text has no waiting coroutines."""
    out = io.StringIO()
    if is_blocked:
        out.write("The event loop of this process is blocked.\n")
    for attempt in attempts:
        claim = attempt.claim
        out.write(f"running: job {claim.id} ({claim.task}) attempt {claim.attempt}\n")
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for identity, frame in sys._current_frames().items():  # the documented way
        out.write(f"\nThread {names.get(identity, identity)} (most recent call last):\n")
        out.writelines(traceback.format_stack(frame))
    for task in () if is_blocked else asyncio.all_tasks():
        out.write(f"\nTask {task.get_name()}:\n")
        task.print_stack(file=out)
    # A name of a file or a thread may hold what is no UTF-8.
    return out.getvalue()[:MOST_CHARS].encode(errors="replace").decode()
