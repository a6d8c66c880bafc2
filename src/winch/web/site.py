"""One application behind HTTP: access, dispatch, and what every answer carries."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import inspect
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from winch.core.errors import DuplicateJob, WinchError
from winch.core.lifecycle import JobState
from winch.core.values.ip_address import Network
from winch.core.version import __version__
from winch.engine.base.log import log
from winch.engine.base.shared_reads import SharedReads
from winch.engine.client.audit import Audit, noted_outside
from winch.engine.client.contracts import Contract, stored_contract
from winch.engine.observe import throughput
from winch.engine.observe.prometheus import Fleet
from winch.engine.observe.queue_counts import CAP, Count, read_queues, state_counts
from winch.engine.observe.store_numbers import dead_letters
from winch.engine.observe.store_timing import Timings, watch
from winch.engine.observe.throughput import HOUR, Series, Span
from winch.engine.observe.usage import ProcessUsage, read_usage
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import QueueInfo, SessionInfo
from winch.web.access import ANONYMOUS, LOCAL, Access
from winch.web.api.held import WorkMemory
from winch.web.finding import MOST_SECONDS, Finder, Found
from winch.web.openapi import document
from winch.web.operations import Operations
from winch.web.pages import show
from winch.web.problems import Problem, problem_of
from winch.web.routes import WebCall, WebReply, WebRoute, read_json, read_query
from winch.web.search import Search
from winch.web.sessions import BrowserSessions
from winch.web.throttle import Throttle
from winch.web.tokens import PREFIX as TOKEN_PREFIX
from winch.web.tokens import Token, Tokens

if TYPE_CHECKING:
    from winch.app import App
    from winch.engine.client.client import Client
    from winch.storage.protocol import Driver

Authenticate = Callable[[Request], Access | Awaitable[Access | None] | None]

BODY_SECONDS = 30.0
MAX_TOKEN = 200
MOST_CONTRACTS = 10_000
# Polled by every open page; one read of the store serves all of them for so long.
CACHE_SECONDS = 0.5
# Charts of hours need not be of this second, and read very many of them.
HOURS_FOR = 60.0
# Figures beside the navigation need not be of this second.
SHELL_SECONDS = 5.0
# How long a page waits for the counts beside its navigation.
SHELL_WAIT = 0.15


@dataclass(frozen=True)
class SiteConfig:
    """How access is controlled. `auth`: `open` gives full access and is for a loopback address only;
    `tokens` requires a token; `host` leaves it to the application that mounts the site."""

    auth: str = "closed"
    is_read_only: bool = False
    hosts: frozenset[str] | None = None
    max_body: int = 8 * 1024 * 1024
    environment: str = ""
    name: str = "Jobs"
    instances: tuple[tuple[str, str], ...] = ()
    proxies: tuple[Network, ...] = ()
    authenticate: Authenticate | None = None


class Site:
    """What the handlers share."""

    def __init__(self, app: App, config: SiteConfig, routes: Sequence[WebRoute]) -> None:
        self.app = app
        self.config = config
        self.routes: tuple[WebRoute, ...] = tuple(routes)
        self.streams = 0
        self.is_stopping: bool = False
        self._is_open = False
        self._opening = asyncio.Lock()
        self._shell: dict[str, int] = {}
        self._counting: asyncio.Task[None] | None = None
        self._shared = SharedReads()
        self._contracts: dict[str, tuple[float, Contract]] = {}
        self.fleet: Fleet = Fleet()
        self.stored: Counter[tuple[str, str]] = Counter()
        self.timings: Timings = Timings()
        self.work: WorkMemory = WorkMemory()
        self._throttle = Throttle()
        self._secret: bytes | None = None
        self._openapi: dict[str, Any] | None = None

    # -- the store ---------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        return self.app.client

    @property
    def driver(self) -> Driver:
        return self.app.driver

    async def open(self) -> None:
        """Look at the store once; its parts are made here because they need its driver."""
        if self._is_open:
            return
        async with self._opening:
            if not self._is_open:
                await asyncio.to_thread(self.app.ready)
                self.tokens: Tokens = Tokens(self.driver)
                self.audit: Audit = Audit(self.driver)
                self.operations: Operations = Operations(self.driver)
                self.sessions: BrowserSessions = BrowserSessions(self.driver)
                self._count()
                self._is_open = True

    def _count(self) -> None:
        """Record what /metrics shows of this process; a worker in it counts for the roll-ups."""
        watch(self.driver, self.timings)
        if self.app.runtime.counted is None:
            self.app.runtime.counted = self.stored

    async def close(self) -> None:
        self.is_stopping = True
        if self._counting is not None:
            self._counting.cancel()
        self._shared.close()
        if self._is_open:
            await self.operations.close()

    @property
    def is_open(self) -> bool:
        """Whether the store has been looked at, which public pages do not need."""
        return self._is_open

    async def kept(self, name: str, read: Callable[[], Awaitable[Any]], seconds: float) -> Any:
        """What `read` returns, read again after so long at the earliest: open pages share it."""
        return await self._shared.get(name, read, seconds)

    async def series(self, span: Span, now: int, count: int, *, by_worker: bool = False) -> Series:
        """The rates of the last `count` spans up to `now`; those of hours may be a minute old."""
        found: Series = await self._shared.get(
            f"series {span.book} {count} {now // span.seconds} {by_worker}",
            lambda: self.client.arun(
                throughput.read(self.driver, span, now, count, by_worker=by_worker)
            ),
            HOURS_FOR if span is HOUR else CACHE_SECONDS,
        )
        return found

    async def counts(self) -> Mapping[JobState, int]:
        """How many jobs are in each state, up to a cap each."""
        found: Mapping[JobState, int] = await self._shared.get(
            "counts", lambda: self.driver.arun(self.driver.counts(cap=CAP)), 1.0
        )
        return found

    async def state_counts(self) -> Mapping[JobState, Count]:
        """How many jobs are in each state; of many, what the queues and the dead letters have."""
        capped, queues, dead = await asyncio.gather(self.counts(), self.queues(), self.dead_letters())
        return state_counts(capped, queues, sum(dead.values()))

    def forget(self) -> None:
        """Something has changed: the next look is at the store."""
        self._shared.forget()

    async def queues(self) -> list[QueueInfo]:
        found: list[QueueInfo] = await self._shared.get(
            "queues", lambda: self.client.arun(read_queues(self.driver, time.time())), CACHE_SECONDS
        )
        return found

    async def dead_letters(self) -> dict[str, int]:
        """How many dead jobs of each task the store keeps."""
        found: dict[str, int] = await self._shared.get(
            "dead letters", lambda: self.client.arun(dead_letters(self.driver)), CACHE_SECONDS
        )
        return found

    async def live_sessions(self) -> list[SessionInfo]:
        """The live sessions of workers."""
        found: list[SessionInfo] = await self._shared.get(
            "sessions", lambda: self.driver.arun(self.driver.sessions()), CACHE_SECONDS
        )
        return [session for session in found if session.is_worker]

    async def usage(self) -> dict[str, ProcessUsage]:
        """What the processes of workers use, by session."""
        found: dict[str, ProcessUsage] = await self._shared.get(
            "usage", lambda: self.client.arun(read_usage(self.driver)), CACHE_SECONDS
        )
        return found

    async def shell_counts(self) -> dict[str, int]:
        """How many queues, workers and dead letters there are: by the path of their page. A store that
        takes long to count them holds up no page: the numbers come with a later one."""

        async def read() -> dict[str, int]:
            return {
                "/queues": len(await self.queues()),
                "/workers": len(await self.live_sessions()),
                "/dead": sum((await self.dead_letters()).values()),
            }

        async def count() -> None:
            self._shell = await self._shared.get("shell", read, SHELL_SECONDS)

        if self._counting is None or self._counting.done():
            self._counting = asyncio.create_task(count(), name="winch shell counts")
        done, _ = await asyncio.wait([self._counting], timeout=SHELL_WAIT)
        for task in done:
            task.result()  # raises what the store raised
        return self._shell

    async def contract(self, task: str) -> Contract | None:
        """What a worker in another language has declared of this task. A new contract is read at once, a
        changed one within a second."""
        known: Contract | None
        until, known = self._contracts.get(task, (0.0, None))
        if known is None or time.monotonic() > until:
            known = await self.client.arun(stored_contract(self.driver, task))
            if known is not None:
                if len(self._contracts) >= MOST_CONTRACTS:
                    self._contracts.clear()
                self._contracts[task] = (time.monotonic() + 1.0, known)
        return known

    async def last_event(self) -> int:
        """Where the stream of events stands now."""
        seq = 0
        while page := await self.driver.arun(self.driver.events(after=seq)):
            seq = page[-1].seq
        return seq

    async def search(
        self,
        access: Access,
        wanted: Search,
        *,
        after: str | None = None,
        limit: int = 50,
        seconds: float = MOST_SECONDS,
    ) -> Found:
        found = self.finder(access).find(wanted, after=after, limit=limit, seconds=seconds)
        return await self.client.arun(found)

    def finder(self, access: Access) -> Finder:
        return Finder(self.driver, self.app.runtime, access.sees)

    def openapi(self) -> dict[str, Any]:
        if self._openapi is None:
            self._openapi = document(self.routes, __version__)
        return self._openapi

    # -- the caller --------------------------------------------------------------------------------

    async def access_of(self, request: Request) -> tuple[Access, str]:
        """The caller, and how it is known: bearer, session, local, host or nothing."""
        header = request.headers.get("authorization", "")
        scheme, _, text = header.partition(" ")
        if self.config.auth in ("open", "tokens") and scheme.lower() == "bearer":
            return await self._bearer(request, text.strip()), "bearer"
        if self.config.auth == "open":
            return LOCAL, "local"
        if self.config.auth == "tokens":
            found = await self.client.arun(self.sessions.access_of(request.cookies, self.tokens))
            return (ANONYMOUS, "nothing") if found is None else (found, "session")
        if self.config.auth == "host" and self.config.authenticate is not None:
            answer = self.config.authenticate(request)
            access = await answer if inspect.isawaitable(answer) else answer
            return (ANONYMOUS, "nothing") if access is None else (access, "host")
        raise Problem(
            "forbidden",
            "this dashboard is closed: the application that mounts it must authorize requests, with "
            "winch.web.asgi(app, authenticate=…)",
        )

    async def _bearer(self, request: Request, text: str) -> Access:
        token = await self._recognised(text)
        if token is None:
            # A right token is recognised first: wrong ones from the same address do not lock it out.
            source = request.client.host if request.client else "unknown"
            self._throttle.failed(source)
            log.warning("a request from %s has a token that is not known, or no longer", source)
            raise Problem("unauthenticated", "the token is not valid", headers=_CHALLENGE)
        return token.access

    async def _recognised(self, text: str) -> Token | None:
        if not text.startswith(TOKEN_PREFIX) or len(text) > MAX_TOKEN:
            return None
        return await self.client.arun(self.tokens.recognise(text))

    async def is_current(self, call: WebCall) -> bool:
        """Whether the caller may still do what the call began with: streams end with their token."""
        scheme, _, text = call.request.headers.get("authorization", "").partition(" ")
        if self.config.auth in ("open", "tokens") and scheme.lower() == "bearer":
            token = await self._recognised(text.strip())
            return token is not None and token.access == call.access
        access, _ = await self.access_of(call.request)
        return access == call.access

    async def login(self, request: Request, text: str) -> str:
        """A new session for the holder of this token; returns the value of its cookie."""
        access = await self._bearer(request, text)
        return await self.client.arun(self.sessions.begin(access.credential))

    async def secret(self) -> bytes:
        """What form tokens are made with: the same for all servers of one store."""
        if self._secret is None:
            drawn = secrets.token_hex(32)
            found = await self.driver.arun(self.driver.kv_list(KvFilter(book="secret")))
            if not found:
                line = KvRecord(book="secret", key=f"form-{drawn[:8]}", body=f'"{drawn}"')
                await self.driver.arun(self.driver.kv_put([line]))
                # Two servers that start together both write; both use the first by key.
                found = await self.driver.arun(self.driver.kv_list(KvFilter(book="secret")))
            drawn = msgspec.json.decode(found[0].body, type=str)
            self._secret = drawn.encode()
        return self._secret

    async def form_token(self, cookie: str) -> str:
        """What a form must send back, for a browser with this form cookie."""
        return hmac.new(await self.secret(), cookie.encode(), hashlib.sha256).hexdigest()

    # -- dispatch ----------------------------------------------------------------------------------

    def endpoint(self, route: WebRoute) -> Callable[[Request], Awaitable[Response]]:
        """The function that serves a route: it checks caller, right, origin and input first."""

        async def serve(request: Request) -> Response:
            return await self._serve(route, request)

        return serve

    async def _serve(self, route: WebRoute, request: Request) -> Response:
        call = WebCall(self, request, ANONYMOUS)
        try:
            if route.needs == "public" and not route.is_page:
                how = "nothing"
            else:
                await self.open()
                call.access, how = await self.access_of(request)
            self._admit(route, call.access, how)
            if route.changes:
                self._check_origin(request, how)
            call.query = read_query(request, route.query, is_page=route.is_page)
            if route.is_page:
                show.ZONE.set(show.known_zone(request.cookies.get("winch-zone", "UTC")))
            if route.changes:
                call.body = await self._read_body(request, route, how)
            with noted_outside():  # one line for a request, below
                answer = await route.handler(call)
            if route.changes:
                self.forget()
            status = answer.status if isinstance(answer, WebReply) else answer.status_code
            # A form shown again has done nothing.
            if route.audit is not None and status < 400 and not call.is_preview:
                await self._note(route, call)
        except WinchError as error:
            problem = problem_of(error)
            if isinstance(error, DuplicateJob) and call.access.is_narrow:
                problem = Problem("duplicate", "another job holds its unique key; wait for its end")
            if problem.status >= 500:
                log.warning("%s %s: %s", request.method, route.path, error)
            raise problem from error
        return answer.response() if isinstance(answer, WebReply) else answer

    def _admit(self, route: WebRoute, access: Access, how: str) -> None:
        if route.needs == "public":
            return
        if how == "nothing":
            raise Problem("unauthenticated", "a token is required", headers=_CHALLENGE)
        if not access.may(route.needs):
            raise Problem(
                "forbidden", f"this needs the right to {route.needs}; {access.name} does not have it"
            )
        if unmet := route.refused(access):
            limits = " and ".join(f"some {name}s" for name in unmet)
            raise Problem(
                "forbidden",
                f"{access.name} is limited to {limits}; this needs access to all of them",
            )
        if route.changes and self.config.is_read_only:
            raise Problem("read-only", "this server only shows; start it without --read-only to act")

    def _check_origin(self, request: Request, how: str) -> None:
        """A browser sends the origin of a request; a request from another site changes nothing."""
        if how == "bearer":  # no browser sends it by itself
            return
        site = request.headers.get("sec-fetch-site")
        origin = request.headers.get("origin")
        if site is not None:
            is_own = site == "same-origin"
        elif origin is not None:
            is_own = origin.partition("://")[2] == request.headers.get("host", "")
        else:
            is_own = how != "session"
        if not is_own:
            raise Problem("cross-site", "requests from other sites change nothing here")

    async def _read_body(self, request: Request, route: WebRoute, how: str) -> Any:
        raw = await _raw_body(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if route.is_page:
            return await self._read_form(request, raw, kind)
        if how == "session":
            await self._check_form_token(request, request.headers.get("x-winch-form", ""))
        if route.body is None:
            return None
        if kind != "application/json":
            raise Problem("not-json", "the body must be JSON, with content-type: application/json")
        return read_json(raw, route.body)

    async def _read_form(self, request: Request, raw: bytes, kind: str) -> dict[str, list[str]]:
        if kind != "application/x-www-form-urlencoded":
            raise Problem("not-json", "a form must be sent as application/x-www-form-urlencoded")
        try:
            pairs = parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=11_000)
        except ValueError as error:
            raise Problem("bad-request", "the form cannot be read") from error
        form: dict[str, list[str]] = {}
        for name, value in pairs:
            form.setdefault(name, []).append(value)
        await self._check_form_token(request, form.pop("form_token", [""])[0])
        return form

    async def _check_form_token(self, request: Request, given: str) -> None:
        cookie = request.cookies.get(FORM_COOKIE, "")
        wanted = await self.form_token(cookie)
        if not cookie or not hmac.compare_digest(wanted.encode(), given.encode()):
            raise Problem("cross-site", "the form is too old or not from here; load the page again")

    async def _note(self, route: WebRoute, call: WebCall) -> None:
        client = call.request.client
        await self.client.arun(
            self.audit.write(
                who=call.by,
                via="dashboard" if route.is_page else "api",
                origin=client.host if client else "",
                action=route.audit or "",
                target=call.target,
                detail=call.detail,
                credential=call.access.credential,
            )
        )


FORM_COOKIE = "winch-form"
_CHALLENGE = {"www-authenticate": 'Bearer realm="winch"'}


async def _raw_body(request: Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.body()
    except TimeoutError:
        raise Problem(
            "timeout",
            f"the body must arrive within {BODY_SECONDS:g} seconds",
            headers={"connection": "close"},
        ) from None
    except ClientDisconnect:
        raise Problem("bad-request", "the body ended early") from None
