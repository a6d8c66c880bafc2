"""An exception as data: type, message, and a traceback without local variables, masked and bounded."""

from __future__ import annotations

import contextlib
import traceback
from collections import OrderedDict
from pathlib import Path
from types import CodeType, TracebackType

from winch.core.errors import type_name
from winch.core.job import Failure
from winch.core.values.codec import MAX_ERROR_BYTES, clean_text
from winch.core.values.redact import stored_text

MAX_FRAMES = 50
MAX_MESSAGE_BYTES = 8 * 1024


def describe(error: BaseException) -> Failure:
    """What is kept of an error. Never raises, whatever the exception's own methods do."""
    try:
        message = str(error)
    except Exception as broken:  # user code: its __str__ may do anything
        message = f"<the message cannot be shown: {type(broken).__name__}>"
    try:
        frames = _shown(error)
    except Exception as broken:  # as above
        frames = f"<the traceback cannot be shown: {type(broken).__name__}>"
    return Failure(
        clean_text(type_name(type(error)), 512),
        stored_text(message, MAX_MESSAGE_BYTES),
        stored_text(frames, MAX_ERROR_BYTES - MAX_MESSAGE_BYTES - 512),
    )


# The frames of errors without a cause, as text. A task mostly fails in the same place. To show a frame,
# Python looks at its source file on the disk and parses the line.
_FRAMES: OrderedDict[tuple[tuple[CodeType, int], ...], str] = OrderedDict()
_MOST_KEPT, _MOST_KEPT_FRAMES = 200, 20
_HEADING = "Traceback (most recent call last):\n"


def _shown(error: BaseException) -> str:
    """The traceback as Python prints it."""
    frames = _own_frames(error.__traceback__)
    places = _places(error, frames)
    if places and (kept := _FRAMES.get(places)) is not None:
        return kept + "".join(
            traceback.TracebackException(type(error), error, None).format_exception_only()
        )
    shown = traceback.TracebackException(type(error), error, frames, limit=-MAX_FRAMES)
    if places:
        _FRAMES[places] = _HEADING + "".join(shown.stack.format())
        if len(_FRAMES) > _MOST_KEPT:
            with contextlib.suppress(KeyError):  # another thread was quicker
                _FRAMES.popitem(last=False)
    return "".join(shown.format())


def _places(
    error: BaseException, frames: TracebackType | None
) -> tuple[tuple[CodeType, int], ...] | None:
    """Where each frame of this error stands. None for errors whose text has more than frames and a
    message, or of which Python looks for a name that was meant."""
    if cause_of(error) is not None or isinstance(
        error, (BaseExceptionGroup, SyntaxError, NameError, AttributeError, ImportError)
    ):
        return None
    places = []
    while frames is not None:
        places.append((frames.tb_frame.f_code, frames.tb_lasti))
        frames = frames.tb_next
        if len(places) > _MOST_KEPT_FRAMES:
            return None
    return tuple(places)


def cause_of(error: BaseException) -> BaseException | None:
    """What an exception was raised from, or while handling what; None where `from None` hides it."""
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__


def described(cause: BaseException, reason: str | None) -> Failure:
    """The error that a handler answered with RetryAfter or Discard, and the reason it gave."""
    failure = describe(cause)
    if reason is None:
        return failure
    return Failure(failure.type, f"{failure.message} ({stored_text(reason, 1024)})", failure.traceback)


_ENGINE = str(Path(__file__).parents[1])


def _own_frames(frames: TracebackType | None) -> TracebackType | None:
    """From the handler on: the frames of the engine do not help with the error."""
    own = frames
    while own is not None and own.tb_frame.f_code.co_filename.startswith(_ENGINE):
        own = own.tb_next
    return frames if own is None else own
