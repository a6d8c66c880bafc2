"""The table of routes: method, path, the right it needs, what goes in and what comes out.

Everything that is true of all routes is derived from it: the dispatcher, the OpenAPI document and the
test that walks every route with every role. A route without a right cannot be written down.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from winch.core.errors import InvalidPayload, JobNotFound
from winch.core.values import codec
from winch.web.access import Access, Narrowing, Right
from winch.web.problems import Problem

if TYPE_CHECKING:
    from winch.core.job import JobRecord
    from winch.web.site import Site

PREFIX = "/api/v1"


@dataclass
class WebCall:
    """One request on its way through a handler."""

    site: Site
    request: Request
    access: Access
    query: Any = None
    body: Any = None
    target: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    is_preview: bool = False
    """The handler has only shown what it would do: there is nothing for the audit."""

    @property
    def by(self) -> str:
        """The actor, as written into histories and the audit."""
        return self.access.name

    def path(self, name: str) -> str:
        value: str = self.request.path_params[name]
        return value

    async def job(self, job_id: str | None = None) -> JobRecord:
        """The job named in the path. One that the caller must not see is not there."""
        record = await self.site.client.aget(self.path("id") if job_id is None else job_id)
        if not self.access.sees(record):
            raise JobNotFound(record.id)
        return record

    async def check_current(self) -> None:
        """Refuse to go on for a caller whose access has ended or changed since the request came."""
        if not await self.site.is_current(self):
            raise Problem("unauthenticated", "the token has ended or changed; nothing more is done")

    def queue(self) -> str:
        """The queue named in the path, if it is the caller's."""
        name = self.path("queue")
        if not self.access.serves(name):
            raise Problem("not-found", f"no queue {name!r}")
        return name

    def note(self, target: str, **detail: Any) -> None:
        """The audit's words for this action."""
        self.target = target
        self.detail.update({key: value for key, value in detail.items() if value is not None})


@dataclass(frozen=True)
class WebReply:
    """An answer in JSON; `body` None is no content."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        if self.body is None:
            return Response(None, self.status if self.status != 200 else 204, dict(self.headers))
        return Response(
            msgspec.json.encode(self.body),
            self.status,
            {"content-type": "application/json", **self.headers},
        )


Handler = Callable[[WebCall], Awaitable[WebReply | Response]]


@dataclass(frozen=True)
class WebRoute:
    """`audit` is the word for the action in the audit; every route that changes something has one, or
    `is_work`: producing and working are the jobs' own records.

    `applies` lists the narrowings that the handler applies to what it reads, returns and changes. The
    server refuses a caller with any other narrowing, so a new route is closed to narrowed callers."""

    method: str
    path: str
    needs: Right
    handler: Handler
    summary: str
    query: type | None = None
    body: type | None = None
    answer: type | None = None
    status: int = 200
    also: tuple[int, ...] = ()
    audit: str | None = None
    is_work: bool = False
    is_page: bool = False
    applies: tuple[Narrowing, ...] = ()
    media: str = "application/json"

    @property
    def changes(self) -> bool:
        return self.method not in ("GET", "HEAD")

    def refused(self, access: Access) -> tuple[Narrowing, ...]:
        """The narrowings of this caller that the handler does not apply."""
        if self.needs == "public":
            return ()
        return tuple(name for name in access.narrowings if name not in self.applies)


def read_json(raw: bytes, type_: type) -> Any:
    """A body as its type: strict JSON, then the type's own rules."""
    try:
        value = codec.loads_strict(raw.decode(), what="the body")
    except (UnicodeDecodeError, InvalidPayload) as error:
        detail = str(error) if isinstance(error, InvalidPayload) else "the body is not UTF-8"
        raise Problem("bad-request", detail) from error
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise Problem("invalid", f"the body is not as it should be: {error}") from error


def read_query(request: Request, type_: type | None, *, is_page: bool) -> Any:
    """The query as its type. An empty text is as good as none; a form of a page sends every field, so
    there an empty number is too."""
    if type_ is None:
        return None
    given: dict[str, str] = {}
    empty: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in given or name in empty:
            raise Problem("bad-request", f"the query has {name!r} twice")
        codec.check_tree(value, f"{name} in the query")
        (given if value else empty)[name] = value
    try:
        if empty and not is_page:
            msgspec.convert(given | empty, type_, strict=False)
        return msgspec.convert(given, type_, strict=False)
    except msgspec.ValidationError as error:
        raise Problem("invalid", f"the query is not as it should be: {error}") from error
