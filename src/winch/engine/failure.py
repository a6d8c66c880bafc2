"""An exception as data: type, message, and a traceback without local variables, all bounded."""

from __future__ import annotations

import traceback

from winch.core.codec import MAX_ERROR_BYTES, clean_text
from winch.core.job import Failure

MAX_FRAMES = 50
MAX_MESSAGE_BYTES = 8 * 1024


def describe(error: BaseException) -> Failure:
    """What is kept of an error. Never raises, whatever the exception's own methods do."""
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        message = str(error)
    except Exception as broken:  # user code: its __str__ may do anything
        message = f"<the message cannot be shown: {type(broken).__name__}>"
    try:
        frames = "".join(traceback.format_exception(error, limit=-MAX_FRAMES))
    except Exception as broken:  # as above
        frames = f"<the traceback cannot be shown: {type(broken).__name__}>"
    return Failure(
        clean_text(name, 512),
        clean_text(message, MAX_MESSAGE_BYTES),
        clean_text(frames, MAX_ERROR_BYTES - MAX_MESSAGE_BYTES - 512),
    )
