"""`winch serve`: the site under uvicorn, closed to other machines unless tokens are asked for."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import uvicorn

from winch.core.errors import ConfigError
from winch.core.values.ip_address import is_loopback, parse_networks
from winch.engine.base import event_loop
from winch.storage.fast import is_fast
from winch.web.access import LOCAL_NAMES
from winch.web.fast.plain_requests import PlainConnection
from winch.web.mount import build_site
from winch.web.server.connections import (
    BACKLOG,
    KEEP_ALIVE_SECONDS,
    Connection,
    Crowd,
    most_connections,
    protocol_of,
)
from winch.web.server.upkeep import Upkeep
from winch.web.site import Site, SiteConfig
from winch.web.tokens import Tokens

if TYPE_CHECKING:
    from winch.app import App
    from winch.web.faktory.gateway import Gateway


def config_for(
    app: App,
    host: str,
    *,
    needs_token: bool,
    is_read_only: bool,
    hosts: tuple[str, ...],
    environment: str,
    name: str = "Jobs",
    instances: Sequence[str] = (),
) -> SiteConfig:
    """How a server on this address is closed; raises ConfigError where it would stand open."""
    is_local = is_loopback(host)
    if not is_local or needs_token:
        now = datetime.now(UTC)
        live = [t for t in app.client.run(Tokens(app.ready()).list()) if t.is_live(now)]
        if not live:
            why = (
                "--auth needs"
                if is_local
                else f"listening on {host} is open to other machines and needs"
            )
            raise ConfigError(
                f"{why} authentication, and no token is live. Make one first with "
                "`winch token create NAME --role admin`"
            )
        needs_token = True
    allowed = frozenset(name.lower() for name in hosts) | LOCAL_NAMES
    return SiteConfig(
        auth="tokens" if needs_token else "open",
        is_read_only=is_read_only,
        # Without a token the name is the only difference between our page and a rebound one.
        hosts=None if needs_token and not hosts else allowed,
        environment=environment,
        name=name,
        instances=tuple(_instance(text) for text in instances),
        proxies=parse_networks(app.settings.trusted_proxies or "", "trusted_proxies"),
    )


def _instance(text: str) -> tuple[str, str]:
    """`staging=https://jobs.staging.example` as a name and an address."""
    name, _, address = text.partition("=")
    if not name or not address.startswith(("https://", "http://")) or not address.isprintable():
        raise ConfigError(f"--instance takes NAME=URL, like staging=https://jobs.example, got {text!r}")
    return name, address


def bind(host: str, port: int, option: str = "--port") -> socket.socket:
    """The listening socket; raises ConfigError when the address cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sets TCP_NODELAY only where the protocol is named. Without it the second half of an
        # answer waits 40 ms for the client to acknowledge the first.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
        listening.listen(BACKLOG)  # a client may come before the server accepts connections
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}; try another {option}") from error
    return listening


def url_of(listening: socket.socket, host: str, scheme: str = "http") -> str:
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    return f"{scheme}://{shown}:{listening.getsockname()[1]}/"


class SiteServer(uvicorn.Server):
    """A server that ends streams and waiting claims before it waits for the requests under way."""

    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        self._site = site

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._site.is_stopping = True
        await super().shutdown(sockets)


def server_for(app: App, config: SiteConfig, *, grace: float = 5) -> uvicorn.Server:
    """The server of a site, not yet started."""
    crowd = Crowd(most_connections(), config.proxies)
    site, application = build_site(app, config, is_full=crowd.is_full)
    return SiteServer(
        uvicorn.Config(
            application,
            http=protocol_of(crowd, PlainConnection if is_fast() else Connection),
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,  # the site resolves them, for trusted proxies only
            backlog=BACKLOG,
            timeout_graceful_shutdown=int(grace),
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=64 * 1024,
            lifespan="on",
        ),
        site,
    )


def serve(
    app: App,
    config: SiteConfig,
    listening: socket.socket,
    *,
    started: Callable[[], None],
    grace: float,
    gateway: Gateway | None = None,
    is_pushing: bool = False,
) -> None:
    """Answer until stopped by a signal. `gateway` serves clients of Faktory meanwhile. `is_pushing`: the
    jobs of the app's push targets are pushed."""
    server = server_for(app, config, grace=grace)

    async def run() -> None:
        await asyncio.to_thread(app.ready)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(Upkeep(app, is_read_only=config.is_read_only))
            await stack.enter_async_context(gateway or nullcontext())
            if is_pushing:
                await stack.enter_async_context(app.worker(queues=sorted(app.runtime.pushed)))
            _stay_after_signals()
            started()
            await server.serve(sockets=[listening])
        await app.aclose()

    with suppress(KeyboardInterrupt):
        event_loop.run(run())


def _stay_after_signals() -> None:
    """uvicorn sends itself the signal that stopped it once more when it has stopped: what is left to
    close here would not be closed, and a stop would look like a death."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
