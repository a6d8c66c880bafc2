"""Put this folder on a worker's PYTHONPATH to have it die at a call of the store.

Python imports a module of this name by itself at start-up. `LAB_DIE_AT=claim:before:3` kills the process
at its third claim, before the call or after it.
"""

from __future__ import annotations

import os

if os.environ.get("LAB_DIE_AT"):
    from lab import hooked

    hooked.install()
