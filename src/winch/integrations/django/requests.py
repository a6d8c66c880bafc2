"""The request behind a job: its id and user reach the handler's log lines.

    MIDDLEWARE = [..., "winch.integrations.django.RequestMiddleware"]
    LOGGING = {
        "filters": {"request": {"()": "winch.integrations.django.RequestFilter"}},
        "formatters": {"own": {"format": "%(request_id)s %(request_user)s %(job_id)s %(message)s"}},
        ...
    }

The middleware goes after AuthenticationMiddleware. A task that is enqueued during a request carries the
id and the user in the job's headers, and so does a task that a handler enqueues. The filter gives both
to every log record, in the web process and in the worker. A record outside of any request has "-".
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest

REQUEST_ID, REQUEST_USER = "django-request-id", "django-request-user"
NONE = "-"
MAX_USER = 150
# What another system may call a request: a text that cannot break a line of the log.
_GIVEN = re.compile(r"[A-Za-z0-9_.:/+=-]{1,128}")


class Origin(NamedTuple):
    """What a job carries of the request that it comes from."""

    request_id: str
    user: str


_request: ContextVar[tuple[str, HttpRequest] | None] = ContextVar("winch_django_request", default=None)
_origin: ContextVar[tuple[Origin, str] | None] = ContextVar("winch_django_origin", default=None)


def origin() -> Origin | None:
    """The id and user of the request that runs here, or of the one behind the job that runs here."""
    running = _origin.get()
    if running is not None:
        return running[0]
    found = _request.get()
    return None if found is None else Origin(found[0], _user_of(found[1]))


def headers() -> dict[str, str]:
    """The headers of a job that is enqueued here."""
    found = origin()
    if found is None:
        return {}
    return {REQUEST_ID: found.request_id} | ({REQUEST_USER: found.user} if found.user else {})


@contextmanager
def carried(job_id: str, given: Mapping[str, str]) -> Iterator[None]:
    """A handler runs: its job brings these headers."""
    found = Origin(given.get(REQUEST_ID, ""), given.get(REQUEST_USER, ""))
    token = _origin.set((found, job_id))
    try:
        yield
    finally:
        _origin.reset(token)


def _user_of(request: HttpRequest) -> str:
    """The name of the user. A coroutine must not query the database for it: there, the one that its code
    has looked at before."""
    try:
        return _name_of(getattr(request, "user", None))
    except SynchronousOnlyOperation:
        return _known_user(request)


def _known_user(request: HttpRequest) -> str:
    """The name of the user that the code has looked at before: `request.user`, `request.auser()`."""
    found = getattr(request, "_cached_user", None) or getattr(request, "_acached_user", None)
    return _name_of(found)


def _name_of(user: Any) -> str:
    if user is None or not user.is_authenticated:
        return ""
    return str(user.get_username())[:MAX_USER]


class RequestMiddleware:
    """Gives each request an id, that of the header X-Request-ID or a new one, and returns it there.

    The setting `REQUEST_ID_HEADER` names another header."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        self._header = getattr(settings, "REQUEST_ID_HEADER", "X-Request-ID")
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if self._is_async:
            return self._acall(request)
        request_id, token = self._begin(request)
        try:
            return self._marked(self._get_response(request), request_id)
        finally:
            _request.reset(token)

    async def _acall(self, request: HttpRequest) -> Any:
        request_id, token = self._begin(request)
        try:
            return self._marked(await self._get_response(request), request_id)
        finally:
            _request.reset(token)

    def _begin(self, request: HttpRequest) -> tuple[str, Any]:
        given = request.headers.get(self._header, "")
        request_id = given if _GIVEN.fullmatch(given) else uuid.uuid4().hex
        return request_id, _request.set((request_id, request))

    def _marked(self, response: Any, request_id: str) -> Any:
        response[self._header] = request_id
        return response


class RequestFilter(logging.Filter):
    """Adds `request_id`, `request_user` and `job_id` to each log record."""

    def filter(self, record: logging.LogRecord) -> bool:
        running, found = _origin.get(), _request.get()
        if running is not None:
            (request_id, user), job_id = running
        else:
            # Not `request.user`: it may query the database, which may log.
            request_id, user = ("", "") if found is None else (found[0], _known_user(found[1]))
            job_id = ""
        record.request_id = request_id or NONE
        record.request_user = user or NONE
        if not hasattr(record, "job_id"):
            record.job_id = job_id or NONE
        return True
