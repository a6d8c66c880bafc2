"""A site under test: requests go through the whole of it, without a socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import httpx
from starlette.types import ASGIApp

from winch import App, Retry
from winch.storage.params import NewSession

T = TypeVar("T")
API = "/api/v1"
OWN = {"sec-fetch-site": "same-origin"}


class LoopThread:
    """An event loop in a thread of its own: a browser's driver has one in the test's."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="web tests")
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Web:
    """An app with two tasks, and its site."""

    def __init__(self, app: App, site: ASGIApp, runner: LoopThread) -> None:
        self.app = app
        self.asgi = site
        self._runner = runner
        self.cookies = httpx.Cookies()

        @app.task(name="shop.mail", queue="mail", retry=Retry.fixed("1m", attempts=3))
        def mail(to: str, password: str = "") -> str:
            return to

        @app.task(name="shop.add")
        def add(a: int, b: int = 1) -> int:
            return a + b

        self.mail, self.add = mail, add

    def ask(self, method: str, path: str, json: Any = None, **more: Any) -> httpx.Response:
        """One request; `token` is sent as a bearer."""
        headers = {"host": "localhost", **more.pop("headers", {})}
        if token := more.pop("token", None):
            headers["authorization"] = f"Bearer {token}"
        if json is not None:
            more["json"] = json

        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(self.asgi, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost", cookies=self.cookies, timeout=30
            ) as client:
                answer = await client.request(method, path, headers=headers, **more)
                self.cookies = client.cookies
                return answer

        return self._runner.run(go())

    def api(self, method: str, path: str, json: Any = None, **more: Any) -> httpx.Response:
        return self.ask(method, API + path, json, **more)

    def token(self, *roles: str, **scope: Any) -> str:
        from winch.web.tokens import Tokens

        made = Tokens(self.app.ready()).create("-".join(roles), roles, **scope)
        return self.app.client.run(made)[0]

    def claim(self, queue: str = "default", **more: Any) -> list[dict[str, Any]]:
        token = more.pop("token", None)
        answer = self.api("POST", f"/queues/{queue}/claim", more, token=token)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["jobs"]
        return found

    def serve(self, *queues: str, tasks: tuple[str, ...] = ("other.task",)) -> None:
        """Let the store believe that a worker is there."""
        driver = self.app.ready()
        from datetime import timedelta

        session = NewSession(
            id="00000000-0000-4000-8000-000000000001",
            worker="w",
            host="h",
            pid=1,
            release="1",
            queues=queues,
            tasks=tasks,
            slots=2,
            lease=timedelta(minutes=5),
        )
        driver.run(driver.start_session(session))

    async def _shut_down(self) -> None:
        """What a server does at its end: the site stops its operations before the store is closed."""
        messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

        async def receive() -> dict[str, str]:
            return messages.pop(0)

        async def send(message: Any) -> None:
            assert message["type"].endswith(".complete"), message

        await self.asgi({"type": "lifespan"}, receive, send)
        await self.app.aclose()

    def close(self) -> None:
        self._runner.run(self._shut_down())
        self.app.close()
