"""A client of Faktory's protocol for tests, and a gateway on a free port."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from winch import App
from winch.web.faktory.gateway import FaktoryConfig, Gateway
from winch.web.server.serve import bind


class Refused(Exception):
    """The gateway answered with an error."""


class Client:
    """One connection; `wid` makes it a worker's."""

    def __init__(self, port: int, *, wid: str = "", password: str = "", tls: bool = False) -> None:
        self.port, self.wid, self.password, self.tls = port, wid, password, tls
        self.reads_text = False
        """Whether the next replies hold plain text and no JSON."""

    async def __aenter__(self) -> Client:
        context = None
        if self.tls:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        try:
            await self._greet()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _greet(self) -> None:
        greeting = await self.read()
        self.greeting = json.loads(greeting.removeprefix("HI "))
        hello: dict[str, Any] = {"v": 2, "hostname": "test", "pid": 7}
        if self.wid:
            hello["wid"] = self.wid
        if "s" in self.greeting:
            salted = f"{self.password}{self.greeting['s']}".encode()
            hello["pwdhash"] = hashlib.sha256(salted).hexdigest()
        assert await self.say("HELLO", hello) == "OK"

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    async def read(self) -> Any:
        line = (await self.reader.readuntil(b"\r\n")).decode().rstrip("\r\n")
        if line.startswith("+"):
            return line[1:]
        if line.startswith("-"):
            raise Refused(line[1:])
        assert line.startswith("$")
        size = int(line[1:])
        if size < 0:
            return None
        body = (await self.reader.readexactly(size + 2))[:-2]
        return body.decode() if self.reads_text else json.loads(body)

    async def say(self, word: str, what: object = None) -> Any:
        text = what if isinstance(what, str) else "" if what is None else json.dumps(what)
        self.writer.write(f"{word} {text}".rstrip().encode() + b"\r\n")
        return await self.read()

    async def push(self, jobtype: str, *args: object, **given: object) -> str:
        jid = str(given.pop("jid", uuid.uuid4().hex))
        job = {"jid": jid, "jobtype": jobtype, "args": list(args), **given}
        assert await self.say("PUSH", job) == "OK"
        return jid

    async def fetch(self, *queues: str) -> Any:
        return await self.say("FETCH", " ".join(queues or ("default",)))


@asynccontextmanager
async def gateway(app: App, **given: Any) -> AsyncIterator[int]:
    """A gateway to this app's store; its port."""
    await asyncio.to_thread(app.ready)
    listening = bind("127.0.0.1", 0)
    port: int = listening.getsockname()[1]
    async with Gateway(app, FaktoryConfig(host="127.0.0.1", port=port, **given), listening):
        yield port
