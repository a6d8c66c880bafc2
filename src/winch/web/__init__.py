"""The HTTP API and the dashboard. They need the extra `web` (`pip install 'winch-jobs[web]'`).

    host.mount("/jobs", winch.web.asgi(app, authenticate=access_of))

`access_of(request)` returns an `Access`, or None for no access. `winch.web.wsgi` makes the same site for
WSGI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winch.web.access import Access
    from winch.web.mount import asgi
    from winch.web.wsgi_adapter import wsgi

__all__ = ["Access", "asgi", "wsgi"]

_HOMES = {"Access": "winch.web.access", "asgi": "winch.web.mount", "wsgi": "winch.web.wsgi_adapter"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
