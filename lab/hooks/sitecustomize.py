"""Put this folder on a worker's PYTHONPATH to have it die at a call of the store, or named as others.

Python imports a module of this name by itself at start-up. `LAB_DIE_AT=claim:before:3` kills the process
at its third claim, before the call or after it. `LAB_TWIN=1` gives its sessions one name, host and pid.
"""

from __future__ import annotations

import os

if os.environ.get("LAB_DIE_AT") or os.environ.get("LAB_TWIN"):
    from lab import hooked

    hooked.install()
