"""An exception as data: type, message, and a traceback without local variables, masked and bounded."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

from winch.core.codec import MAX_ERROR_BYTES, clean_text
from winch.core.job import Failure
from winch.core.redact import stored_text

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
        shown = traceback.TracebackException(
            type(error), error, _own_frames(error.__traceback__), limit=-MAX_FRAMES
        )
        frames = "".join(shown.format())
    except Exception as broken:  # as above
        frames = f"<the traceback cannot be shown: {type(broken).__name__}>"
    return Failure(
        clean_text(name, 512),
        stored_text(message, MAX_MESSAGE_BYTES),
        stored_text(frames, MAX_ERROR_BYTES - MAX_MESSAGE_BYTES - 512),
    )


_ENGINE = str(Path(__file__).parent)


def _own_frames(frames: TracebackType | None) -> TracebackType | None:
    """From the handler on: how the engine called it says nothing about the error."""
    own = frames
    while own is not None and own.tb_frame.f_code.co_filename.startswith(_ENGINE):
        own = own.tb_next
    return frames if own is None else own
