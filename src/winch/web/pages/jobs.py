"""The list of jobs: one search box, facets, saved views, and actions on many."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from starlette.responses import Response

from winch.core.errors import ConfigError
from winch.core.lifecycle import JobState, sources
from winch.core.values.ids import known_as
from winch.engine.observe.queue_counts import Count
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import JobFilter
from winch.web import search
from winch.web.access import EVERY_NARROWING
from winch.web.api import jobs as api
from winch.web.finding import Found
from winch.web.pages import facets
from winch.web.pages.base import (
    DENSITIES,
    DENSITY_COOKIE,
    curl,
    density_of,
    go,
    one,
    page,
    part,
)
from winch.web.problems import Problem
from winch.web.routes import WebCall, WebReply, WebRoute
from winch.web.schemas.convert import ACTIONS, job_out
from winch.web.schemas.jobs import FilterBody

FILTERS = ("q", "state", "queue", "task", "tag", "group")
ON_A_PAGE = 50
COLUMNS = {
    "state": "State",
    "task": "Task",
    "args": "Arguments or error",
    "queue": "Queue",
    "tenant": "Tenant",
    "attempt": "Attempt",
    "priority": "Priority",
    "tags": "Tags",
    "id": "Id",
    "took": "Took",
    "when": "When",
}
SHOWN = ("state", "task", "args", "queue", "tenant", "attempt", "took", "when")
COLUMNS_COOKIE = "winch-columns"
VIEWS = "view"
MOST_VIEWS = 50
# A walk over all jobs ends after so long, and the page offers to search on; that search may take longer.
FIRST_SECONDS, ON_SECONDS = 0.1, 2.0
# A count of what a bulk action is for looks at so many jobs, and for so long.
MOST_COUNTED, COUNT_SECONDS = 100_000, 3.0


class JobsQuery(msgspec.Struct, frozen=True, kw_only=True):
    q: str = ""
    state: str = ""
    queue: str = ""
    task: str = ""
    tag: str = ""
    group: str = ""
    cursor: str | None = None
    columns: str = ""
    density: str = ""
    did: str = ""


class TypedQuery(msgspec.Struct, frozen=True, kw_only=True):
    q: str = ""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A saved search: all who may read every job see it."""

    name: str
    q: str
    by: str


async def list_page(call: WebCall) -> Response:
    query: JobsQuery = call.query
    q = facets.search_of({name: getattr(query, name) for name in FILTERS})
    # The store counts while it looks for the jobs.
    (found, error), values, counts = await asyncio.gather(
        _found(call, q, query.cursor), facets.values_of(call), _counts(call)
    )
    words = facets.tokens(q)
    columns = columns_in(query.columns) if query.columns else columns_of(call)
    density = query.density if query.density in DENSITIES else density_of(call.request)
    answer = await page(
        call,
        "jobs.html",
        title="Jobs",
        q=q,
        tokens=words,
        workers={session: name for name, session in values.sessions.items()},
        jobs=[job_out(job) for job in found.jobs],
        found=found,
        total=_total(q, counts, found, query.cursor),
        error=error,
        facets=facets.facets(q, counts if _is_about_states(words) else {}, values),
        columns=columns,
        all_columns=COLUMNS,
        toggled={name: _toggled(columns, name) for name in COLUMNS},
        density=density,
        views=await _views(call),
        actions=ACTIONS,
        cursor=query.cursor,
        curl=curl(call, "/api/v1/jobs", q=q),
        cli=_command(call.site.app.command, words),
    )
    root = call.request.scope.get("root_path", "") or "/"
    for name, value in ((COLUMNS_COOKIE, query.columns), (DENSITY_COOKIE, query.density)):
        if value:
            kept = ".".join(columns) if name == COLUMNS_COOKIE else density
            answer.set_cookie(name, kept, max_age=31_536_000, samesite="strict", path=root)
    return answer


async def _found(call: WebCall, q: str, cursor: str | None) -> tuple[Found, str]:
    """The jobs of the page, or what is wrong with the search."""
    seconds = FIRST_SECONDS if cursor is None else ON_SECONDS
    try:
        return await call.site.search(
            call.access, search.parse(q), after=cursor, limit=ON_A_PAGE, seconds=seconds
        ), ""
    except ConfigError as wrong:
        return Found(), str(wrong)


async def _counts(call: WebCall) -> Mapping[JobState, Count]:
    if call.access.is_narrow:
        return {}
    return await call.site.state_counts()


def columns_of(call: WebCall) -> tuple[str, ...]:
    """The columns that this browser remembers."""
    return columns_in(call.request.cookies.get(COLUMNS_COOKIE, ""))


def columns_in(text: str) -> tuple[str, ...]:
    """The columns of the list in their own order; the state and the task are always among them."""
    wanted = set(text.split(".")) & set(COLUMNS) if text else set(SHOWN)
    return tuple(name for name in COLUMNS if name in wanted | {"state", "task"})


def _toggled(columns: Sequence[str], name: str) -> str:
    return ".".join(one for one in COLUMNS if (one in columns) is not (one == name))


def _is_about_states(words: Sequence[facets.SearchToken]) -> bool:
    """Whether the store's counts by state are those of this search."""
    return all(word.name == "state" for word in words)


def _total(q: str, counts: Mapping[JobState, Count], found: Found, cursor: str | None) -> str:
    """How many jobs match, as far as that is known without a look at each."""
    words = facets.tokens(q)
    if counts and _is_about_states(words):
        try:
            states = search.parse(q).which.states or tuple(JobState)
        except ConfigError:
            return "0"
        wanted = [counts[state] for state in states]
        marks = {one_.mark for one_ in wanted}
        sign = "more than " if "+" in marks else "~" if "~" in marks else ""
        return f"{sign}{sum(one_.number for one_ in wanted):,}"
    if found.next is None and cursor is None:
        return f"{len(found.jobs):,}"
    return f"{len(found.jobs):,}" if found.next is None else f"{len(found.jobs):,} or more"


def _command(command: str, words: Sequence[facets.SearchToken]) -> str:
    """The same list on the command line, where it knows all the words; else of the API."""
    known = ("state", "queue", "task", "tag")
    if all(word.name in known for word in words):
        options = [f"--{word.name} {shlex.quote(word.value)}" for word in words]
        return " ".join([f"{command} jobs list", *options])
    return ""


# -- views, suggestions ------------------------------------------------------------------------------


async def _views(call: WebCall) -> list[View]:
    """The saved searches; a narrowed caller sees its own."""
    driver = call.site.driver
    lines = await driver.arun(driver.kv_list(KvFilter(book=VIEWS, limit=MOST_VIEWS)))
    found = [msgspec.json.decode(line.body, type=View) for line in lines]
    return [one for one in found if not call.access.is_narrow or one.by == call.by]


async def save_view(call: WebCall) -> Response:
    """Keep a search under a name, or remove the one of this name."""
    gone = one(call.body, "remove")
    name, q = gone or one(call.body, "name") or "", one(call.body, "q") or ""
    if not 0 < len(name) <= 60 or not name.isprintable():
        raise Problem("invalid", "a view needs a name of at most 60 characters")
    driver = call.site.driver
    key = call.by + "\x1f" + name
    if gone is not None:
        await driver.arun(driver.kv_delete(VIEWS, [key]))
        call.note(name, action="remove")
        return go(call, "/jobs", q=q, did="view-removed")
    search.parse(q)
    view = View(name=name, q=q, by=call.by)
    line = KvRecord(book=VIEWS, key=key, body=msgspec.json.encode(view).decode())
    await driver.arun(driver.kv_put([line]))
    call.note(name, q=q)
    return go(call, "/jobs", q=q, did="view-saved")


async def suggest(call: WebCall) -> Response:
    """What the word that is being typed may become, for the search box."""
    found = facets.suggestions(call.query.q[-200:], await _counts(call), await facets.values_of(call))
    return WebReply({"groups": found}).response()


async def goals(call: WebCall) -> Response:
    """Where the palette can go with these words."""
    found = facets.goals(call.query.q[:200], await facets.values_of(call))
    return WebReply({"goals": found}).response()


async def bulk(call: WebCall) -> Response:
    """Act on the ticked rows, or on all that the search matches: first the counts, then the deed."""
    action = one(call.body, "action") or ""
    if action not in ACTIONS:
        raise Problem("invalid", f"action must be one of {', '.join(ACTIONS)}")
    ids = call.body.get("id", [])
    q = facets.search_of({name: one(call.body, name) or "" for name in FILTERS})
    is_all = one(call.body, "scope") == "matching"
    if not is_all and not ids:
        raise Problem("invalid", "no job is ticked")
    if one(call.body, "sure") != "yes":
        return await _confirm(call, action, q, [] if is_all else ids)
    body = FilterBody(
        q=(q or None) if is_all else None,
        ids=None if is_all else ids,
        all=is_all,
        reason=one(call.body, "reason"),
    )
    done = await api.bulk(call, action, body)
    return go(call, f"/operations/{part(done.id)}")


async def _confirm(call: WebCall, action: str, q: str, ids: Sequence[str]) -> Response:
    wanted = search.parse(q)
    if ids:
        chosen = tuple(dict.fromkeys(known_as(job_id, "id") for job_id in ids))
        wanted = search.Search(JobFilter(), chosen)
    call.is_preview = True
    states, is_partial = await _counted(call, wanted)
    takes = sources(action)
    return await page(
        call,
        "confirm.html",
        title=f"{action.capitalize()} jobs",
        action=action,
        q=q,
        ids=ids,
        matched=sum(states.values()),
        taken={state: n for state, n in states.items() if state in takes},
        left={state: n for state, n in states.items() if state not in takes},
        is_partial=is_partial,
    )


async def _counted(call: WebCall, wanted: search.Search) -> tuple[Counter[JobState], bool]:
    """The states of the jobs that match; the count stops after a while."""
    states: Counter[JobState] = Counter()
    began, after = time.monotonic(), None
    while True:
        found = await call.site.search(call.access, wanted, after=after, limit=1000)
        states.update(job.state for job in found.jobs)
        after = found.next
        if after is None:
            return states, False
        if sum(states.values()) >= MOST_COUNTED or time.monotonic() - began > COUNT_SECONDS:
            return states, True


ROUTES: tuple[WebRoute, ...] = (
    WebRoute(
        "GET", "/jobs", "read", list_page, "Jobs", query=JobsQuery, is_page=True, applies=EVERY_NARROWING
    ),
    WebRoute(
        "POST",
        "/jobs",
        "operate",
        bulk,
        "Act on jobs",
        audit="bulk",
        is_page=True,
        applies=EVERY_NARROWING,
    ),
    WebRoute(
        "GET",
        "/jobs/suggest",
        "read",
        suggest,
        "Words for the search box",
        query=TypedQuery,
        is_page=True,
        applies=EVERY_NARROWING,
    ),
    WebRoute(
        "GET",
        "/goals",
        "read",
        goals,
        "Where the palette can go",
        query=TypedQuery,
        is_page=True,
        applies=EVERY_NARROWING,
    ),
    WebRoute(
        "POST",
        "/jobs/views",
        "operate",
        save_view,
        "Save a search",
        audit="save view",
        is_page=True,
        applies=EVERY_NARROWING,
    ),
)
