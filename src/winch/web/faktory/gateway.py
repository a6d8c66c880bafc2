"""The listening side: connections, the greeting with its password, and one command after another."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import socket
import ssl
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core.errors import ConfigError, StorageError
from winch.core.values.ip_address import is_loopback
from winch.engine.base.log import log
from winch.web.faktory.commands import FaktoryCaller, FaktoryCommands
from winch.web.faktory.payload import parse
from winch.web.faktory.reservations import Keeper
from winch.web.faktory.wire import MAX_LINE_BYTES, OK, FaktoryError, Lines, error
from winch.web.problems import Problem
from winch.web.throttle import Throttle

if TYPE_CHECKING:
    from winch.app import App

VERSION = 2
# One of the clients for Python hashes once, whatever the server asks for.
ITERATIONS = 1
HELLO_SECONDS = 10.0
WRITE_SECONDS = 30.0
MOST_CONNECTIONS = 1000
MAX_WID_CHARS = 100


class HelloBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a client says of itself. A worker has a `wid`."""

    v: int = VERSION
    hostname: str = ""
    wid: str = ""
    pid: int = 0
    pwdhash: str = ""


class FaktoryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the gateway listens."""

    host: str
    port: int
    password: str | None = None
    cert: str | None = None
    key: str | None = None
    allows_flush: bool = False


def checked(config: FaktoryConfig) -> FaktoryConfig:
    """The configuration, if it does not stand open; raises ConfigError."""
    if config.password is None and not is_loopback(config.host):
        raise ConfigError(
            f"the gateway for Faktory on {config.host} is open to other machines and needs a password: "
            "set $WINCH_FAKTORY_PASSWORD"
        )
    if (config.cert is None) != (config.key is None):
        raise ConfigError("--faktory-cert and --faktory-key go together")
    return config


class Gateway:
    """`async with Gateway(app, config, listening): …` serves until the end of the block."""

    def __init__(self, app: App, config: FaktoryConfig, listening: socket.socket) -> None:
        self._app = app
        self._config = config
        self._listening = listening
        self._commands = FaktoryCommands(app, allows_flush=config.allows_flush)
        self._keeper = Keeper(app, self._commands.reservations)
        self._throttle = Throttle()
        self._open: dict[asyncio.Task[None], str] = {}

    async def __aenter__(self) -> Gateway:
        self._server = await asyncio.start_server(
            self._accepted, sock=self._listening, ssl=_context(self._config)
        )
        self._keeping = asyncio.create_task(self._keeper.run(), name="winch faktory")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._open):
            task.cancel()
        self._keeper.stop()
        self._keeping.cancel()
        await asyncio.gather(self._keeping, *self._open, return_exceptions=True)
        try:
            async with asyncio.timeout(5.0):
                await self._commands.workers.end()
        except (StorageError, TimeoutError) as failure:
            log.warning("sessions of Faktory workers were not ended; their leases end: %s", failure)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:  # asyncio runs this in a task
            return
        address = str((writer.get_extra_info("peername") or ("?",))[0])
        open_from = Counter(self._open.values())
        self._open[task] = address
        self._commands.connections = len(self._open)
        try:
            if len(self._open) > MOST_CONNECTIONS or open_from[address] >= MOST_CONNECTIONS // 2:
                await _send(writer, error("too many connections"))
                return
            _set_keepalive(writer)
            await self._serve(Lines(reader), writer, address)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # the client is gone, or the gateway stops
        finally:
            del self._open[task]
            self._commands.connections = len(self._open)
            writer.close()

    async def _serve(self, lines: Lines, writer: asyncio.StreamWriter, address: str) -> None:
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                caller = await self._greeted(lines, writer, address)
        except FaktoryError as failure:
            await _send(writer, error(str(failure)))
            return
        lines.limit = MAX_LINE_BYTES
        try:
            while (line := await self._next(lines, writer)) is not None:
                if line.strip().upper() == "END":
                    return
                if line.strip():
                    await _send(writer, await self._reply(caller, line))
        finally:
            await asyncio.shield(self._commands.left(caller))

    async def _greeted(self, lines: Lines, writer: asyncio.StreamWriter, address: str) -> FaktoryCaller:
        greeting: dict[str, Any] = {"v": VERSION}
        salt = ""
        if self._config.password is not None:
            salt = secrets.token_hex(8)
            greeting |= {"s": salt, "i": ITERATIONS}
        await _send(writer, b"+HI %s\r\n" % msgspec.json.encode(greeting))
        line = await lines.next() or ""
        word, _, rest = line.partition(" ")
        if word.upper() != "HELLO":
            raise FaktoryError("a client begins with HELLO")
        hello: HelloBody = parse(rest, HelloBody, "HELLO")
        if self._config.password is not None:
            self._check(self._config.password, salt, hello.pwdhash, address)
        if len(hello.wid) > MAX_WID_CHARS or not (hello.wid.isprintable() or not hello.wid):
            raise FaktoryError(f"wid has at most {MAX_WID_CHARS} printable characters")
        await _send(writer, OK)
        host = hello.hostname if hello.hostname.isprintable() else ""
        return FaktoryCaller(lines, address, hello.wid, host[:200] or address, hello.pid)

    def _check(self, password: str, salt: str, given: str, address: str) -> None:
        digest = hashlib.sha256(f"{password}{salt}".encode()).digest()
        for _ in range(ITERATIONS - 1):
            digest = hashlib.sha256(digest).digest()
        if hmac.compare_digest(digest.hex().encode(), given.encode("utf-8", "replace")):
            return
        try:
            self._throttle.failed(address)
        except Problem:
            raise FaktoryError(
                "Invalid password; too many wrong ones from here, wait a minute"
            ) from None
        raise FaktoryError("Invalid password")

    async def _next(self, lines: Lines, writer: asyncio.StreamWriter) -> str | None:
        try:
            return await lines.next()
        except FaktoryError as failure:
            await _send(writer, error(str(failure)))
            return None

    async def _reply(self, caller: FaktoryCaller, line: str) -> bytes:
        try:
            return await self._commands.run(caller, line)
        except FaktoryError as failure:
            return error(str(failure))
        except OSError:
            raise
        except Exception:
            log.exception("a command of a Faktory client failed")
            return error("the gateway has failed at this command; its log says why")


async def _send(writer: asyncio.StreamWriter, reply: bytes) -> None:
    writer.write(reply)
    async with asyncio.timeout(WRITE_SECONDS):
        await writer.drain()


def _set_keepalive(writer: asyncio.StreamWriter) -> None:
    """Find connections whose other side is gone without a word."""
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _context(config: FaktoryConfig) -> ssl.SSLContext | None:
    if config.cert is None or config.key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(Path(config.cert), Path(config.key))
    except (OSError, ssl.SSLError) as failure:
        raise ConfigError(f"the certificate of the gateway cannot be read: {failure}") from failure
    return context
