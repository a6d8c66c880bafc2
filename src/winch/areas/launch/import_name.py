"""The name under which a process imports an app."""

from __future__ import annotations

import sys


def name_of(app: object) -> str | None:
    """`module:attribute` of a module that holds the app; None where there is none.

    The script itself is none: importing it again would run it again. multiprocessing gives it a second
    name."""
    script = sys.modules.get("__main__")
    for name, module in list(sys.modules.items()):
        if module is not script and getattr(module, "__file__", None):
            for attribute, value in list(vars(module).items()):
                if value is app:
                    return f"{name}:{attribute}"
    return None
