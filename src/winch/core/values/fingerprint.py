"""What makes two deaths the same: the fingerprint under which dead jobs are grouped.

A hash over the task, the error's type, its message without what differs from job to job, and the names
of the functions it came through. Line numbers are left out, so that a deploy does not split a group.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath

from winch.core.job import Failure

LENGTH = 16
MESSAGE_CHARS = 500
FRAMES = 3

# In this order: a UUID is made of hex words and numbers, and a quoted text may hold any of them.
_VARYING = (
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "<uuid>"),
    # A quote inside a word is an apostrophe.
    (re.compile(r"""(?<!\w)'[^'\n]*'(?!\w)|(?<!\w)"[^"\n]*"(?!\w)|`[^`\n]*`"""), "<text>"),
    (re.compile(r"\b0x[0-9a-f]+\b|\b(?=[a-f]*[0-9])[0-9a-f]{8,}\b", re.IGNORECASE), "<hex>"),
    (re.compile(r"[-+]?\d(?:[.,:_]?\d)*"), "<n>"),
)
_FRAME = re.compile(r'^[ |+]*File "(?P<file>[^"\n]+)", line \d+, in (?P<function>.+)$', re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
# Other people's code: how a library got to its error is of less use than its caller.
_FOREIGN = re.compile(r"/(?:site|dist)-packages/|/lib/python\d[^/]*/|^<")


def fingerprint(task: str, error: Failure) -> str:
    """The group that a death of this task with this error belongs to: 16 hex digits."""
    return fingerprint_of_trace(task, trace(error))


def fingerprint_of_trace(task: str, trace: str) -> str:
    """`fingerprint`, where only the store knows the task. PostgreSQL does the same in SQL."""
    return hashlib.sha256((task + trace).encode("utf-8", "replace")).hexdigest()[:LENGTH]


def trace(error: Failure) -> str:
    """What is the same in all errors of one kind, whichever task they happened in."""
    parts = [_grouped_as(error.type), normal_message(error.message), *frames(error.traceback or "")]
    text = "".join(f"\n{part}" for part in parts)
    # It goes through the store to be hashed there, so it holds only what every store can hold.
    return text.replace("\0", " ").encode("utf-8", "replace").decode()


def _grouped_as(error_type: str) -> str:
    """The type as the groups of the dead have always had it: another name must not split a group."""
    home, _, name = error_type.rpartition(".")
    return _FORMER_NAMES.get(name, f"winch.core.errors.{name}") if home == "winch" else error_type


_FORMER_NAMES = {
    "JobCrashed": "crashed",
    "JobRescued": "rescued",
    "JobTimeout": "winch.engine.worker.attempt.JobTimeout",
    "JobCancelled": "winch.engine.worker.attempt.JobCancelled",
    "FlowFailed": "FlowFailed",
    "RetryAfter": "RetryAfter",
    "Discard": "Discard",
}


def normal_message(message: str) -> str:
    """The message with numbers, hex words, UUIDs and quoted texts taken out, in one line."""
    text = message[: 4 * MESSAGE_CHARS]
    for varying, sign in _VARYING:
        text = varying.sub(sign, text)
    return " ".join(text.split())[:MESSAGE_CHARS]


def frames(traceback: str) -> list[str]:
    """`file:function` of the innermost frames of the application, of all code where it has none."""
    last = traceback.rpartition(_TRACEBACK)[2]  # a chain's last part is the error that was raised
    found = [(match["file"], match["function"].strip()) for match in _FRAME.finditer(last)]
    own = [frame for frame in found if not _FOREIGN.search(frame[0])]
    return [f"{PurePosixPath(file).name}:{function}" for file, function in (own or found)[-FRAMES:]]
