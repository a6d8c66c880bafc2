"""The engine's logger, apart from all else: a producer that logs must not import an event loop."""

from __future__ import annotations

import logging
import traceback

from winch.core.values.codec import MAX_ERROR_BYTES
from winch.core.values.redact import mask_text, stored_text

log: logging.Logger = logging.getLogger("winch")


def masked(record: logging.LogRecord) -> bool:
    """Mask secrets in a record and cut its traceback, whichever handler of the application prints it."""
    text = record.getMessage()
    if (hidden := mask_text(text)) != text:
        record.msg, record.args = hidden, None
    if record.exc_info and record.exc_text is None:
        shown = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        record.exc_text = stored_text(shown, MAX_ERROR_BYTES)
    return True


# A filter sees only what its own logger is given: handlers' lines go through `winch.job`.
for _name in ("winch", "winch.job"):
    logging.getLogger(_name).addFilter(masked)
