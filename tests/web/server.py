"""A real `winch serve` for tests that need a socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from winch import App
from winch.engine.base import event_loop
from winch.web.server.serve import bind, server_for
from winch.web.site import SiteConfig


@contextmanager
def serving(app: App, *, grace: float = 1, **config: object) -> Iterator[str]:
    """The site on a port of its own, in a thread; gives its address without a slash at the end."""
    config.setdefault("auth", "open")
    config.setdefault("hosts", frozenset({"localhost", "127.0.0.1"}))
    listening = bind("127.0.0.1", 0)
    server = server_for(app, SiteConfig(**config), grace=grace)  # type: ignore[arg-type]  # real fields

    def run() -> None:
        async def main() -> None:
            await server.serve(sockets=[listening])
            await app.aclose()

        event_loop.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        address = f"http://localhost:{listening.getsockname()[1]}"
        deadline = time.monotonic() + 20
        while True:
            try:
                httpx.get(f"{address}/livez", timeout=2)
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline, "the server does not come up"
                time.sleep(0.05)
        yield address
    finally:
        server.should_exit = True
        thread.join()
        app.close()
