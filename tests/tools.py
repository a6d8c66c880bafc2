"""Programs that are no part of Winch and that a few tests run.

`make test` goes without one that is absent and names the command that installs it. `make test-all`
installs what a package manager has, so there an absent program is a failure.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

# Set by scripts/test_parts.py --slow.
IS_ALL = "WINCH_TEST_ALL" in os.environ


def program(name: str, *, install: str, is_packaged: bool = True) -> str:
    """The path of a program, beside the interpreter or on PATH. Without it the test is skipped, or fails
    where every test must run and a package manager has it."""
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is not None:
        return found
    reason = f"{name} is absent; install it with: {install}"
    if IS_ALL and is_packaged:
        pytest.fail(reason)
    pytest.skip(reason)
