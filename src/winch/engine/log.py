"""The engine's logger, apart from all else: a producer that logs must not import an event loop."""

from __future__ import annotations

import logging

log: logging.Logger = logging.getLogger("winch")
