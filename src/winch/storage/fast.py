"""`WINCH_FAST=off`: every job takes the plain path. For tests: a fast path must equal the plain one."""

from __future__ import annotations

import os

ENV = "WINCH_FAST"


def is_fast() -> bool:
    """Whether fast paths are taken; read where an object chooses its path, once."""
    return os.environ.get(ENV, "on") != "off"
