"""The search of the list of jobs as its parts: chips, facets with counts, and suggestions.

The search box and the facets are one state, the words of `q`: a facet writes a word into it.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from winch.core.lifecycle import JobState
from winch.engine.observe.queue_counts import Count
from winch.engine.observe.throughput import HOUR
from winch.storage.params import DeadGroup, GroupFilter, QueueInfo
from winch.web.routes import WebCall

MOST = 7
VALUES_FOR = 15.0
FIELDS: Mapping[str, str] = {
    "state": "what it does now",
    "queue": "where it waits",
    "task": "what runs",
    "tenant": "whose job it is",
    "tag": "a label that it was given",
    "error": "words of its error",
    "attempt": "a number: 3, >3, <2",
    "duration": "how long it ran: >10s",
    "wait": "how long it waited: >1m",
    "enqueued": "how long ago: <1h, >2d",
    "worker": "the session that ran it",
    "priority": "a number: >0",
    "gate": "the limit or breaker at which it waits",
    "id": "one job",
    "group": "dead jobs of one cause",
    "args.NAME": "an argument: args.user_id:42",
}


@dataclass(frozen=True)
class SearchToken:
    """One word of the search. `q` is the search without it."""

    text: str
    name: str
    value: str
    q: str


def split(q: str) -> list[str]:
    """The words of a search; a search with an open quotation mark is one word."""
    try:
        return shlex.split(q)
    except ValueError:
        return [q]


def joined(words: Iterable[str]) -> str:
    """Words as a search that `split` reads back."""
    return " ".join(word if word.isascii() and _is_plain(word) else shlex.quote(word) for word in words)


def _is_plain(word: str) -> bool:
    return not any(letter in " \t\n'\"\\" for letter in word)


def search_of(filters: Mapping[str, str]) -> str:
    """Filters of an address as one search: `state=dead&q=x` is `state:dead x`."""
    words = [f"{name}:{value}" for name, value in filters.items() if name != "q" and value]
    return joined([*words, *split(filters.get("q", ""))])


def tokens(q: str) -> list[SearchToken]:
    """The words of the search that name a field, each with what is left without it."""
    words = split(q)
    found = []
    for place, word in enumerate(words):
        name, colon, value = word.partition(":")
        rest = joined(words[:place] + words[place + 1 :])
        found.append(SearchToken(word, name if colon else "", value if colon else word, rest))
    return found


def with_value(q: str, name: str, value: str) -> str:
    """The search with `name:value` in the place of other values of that name, or without it."""
    word = f"{name}:{value}"
    words = split(q)
    rest = [one for one in words if one.partition(":")[0] != name]
    return joined(rest if word in words else [*rest, word])


@dataclass(frozen=True)
class FacetValue:
    name: str
    count: str
    q: str
    is_chosen: bool


@dataclass(frozen=True)
class Facet:
    """Values of one field, with how many jobs each has; `note` is what is counted."""

    field: str
    title: str
    note: str
    values: Sequence[FacetValue]


class Values(msgspec.Struct, frozen=True):
    """Values of the fields, with a count of each, as far as the store's books have them."""

    queues: dict[str, int]
    tasks: dict[str, int]
    tenants: dict[str, int]
    workers: dict[str, int]
    errors: dict[str, int]
    sessions: dict[str, str]


async def values_of(call: WebCall) -> Values:
    """The values that this caller may see; those of all jobs are read seldom, and shared."""
    access = call.access
    if access.is_narrow:
        own = {access.tenant: 0} if access.tenant else {}
        return Values(
            dict.fromkeys(access.queues or (), 0), dict.fromkeys(access.tasks or (), 0), own, {}, {}, {}
        )

    async def read() -> Values:
        return await _read(call)

    found: Values = await call.site.kept("search values", read, VALUES_FOR)
    return found


async def _read(call: WebCall) -> Values:
    site, driver = call.site, call.site.driver
    queues: list[QueueInfo] = await site.queues()
    sessions = await site.live_sessions()
    groups: list[DeadGroup] = await driver.arun(driver.groups(GroupFilter(limit=50)))
    day = await site.series(HOUR, int(time.time()), 24)
    tasks = {name: rate.ended for name, rate in day.by_task().items()}
    for session in sessions:
        for name in session.tasks:
            tasks.setdefault(name, 0)
    for name in site.app.tasks.names:
        tasks.setdefault(name, 0)
    tenants: dict[str, int] = {}
    for rate in day.by_task().values():
        for name, (number, _) in rate.tenants.items():
            tenants[name] = tenants.get(name, 0) + number
    errors: dict[str, int] = {}
    for group in groups:
        if name := group.error_name.rpartition(".")[2]:
            errors[name] = errors.get(name, 0) + group.count
    return Values(
        queues={queue.name: sum(queue.counts.values()) for queue in queues},
        tasks=_largest(tasks, 500),
        tenants=_largest(tenants, 500),
        workers={session.worker: session.running for session in sessions},
        errors=errors,
        sessions={session.worker: session.id for session in sessions},
    )


def _largest(found: Mapping[str, int], most: int) -> dict[str, int]:
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))[:most])


def short(number: int) -> str:
    """A count as a facet shows it: 998, 42.9k, ~1.2M."""
    if number < 10_000:
        return f"{number:,}"
    return f"{number / 1000:.3g}k" if number < 1_000_000 else f"{number / 1e6:.3g}M"


def facets(q: str, counts: Mapping[JobState, Count], found: Values) -> list[Facet]:
    """What the list can be narrowed by; each value's link writes it into the search."""
    chosen = {(token.name, token.value) for token in tokens(q)}

    def value(field: str, name: str, count: str, word: str) -> FacetValue:
        return FacetValue(name, count, with_value(q, field, word), (field, word) in chosen)

    def facet(
        field: str,
        title: str,
        note: str,
        named: Mapping[str, int],
        words: Mapping[str, str] | None = None,
    ) -> Facet:
        """`words` has what the search calls a value, where that is not its name."""
        of_names = words or {}
        names = {word: name for name, word in of_names.items()}
        shown = list(_largest(named, MOST))
        picked = [names.get(word, word) for kind, word in chosen if kind == field]
        shown += [one for one in picked if one not in shown]
        return Facet(
            field,
            title,
            note,
            [
                value(field, one, short(named[one]) if named.get(one) else "", of_names.get(one, one))
                for one in shown
            ],
        )

    states = [
        value(
            "state",
            str(state),
            counts[state].words(short(counts[state].number)) if state in counts else "",
            str(state),
        )
        for state in _ORDER
    ]
    all_of = [
        Facet("state", "State", "", states),
        facet("queue", "Queue", "not ended", found.queues),
        facet("task", "Task", "ended in 24 h", found.tasks),
        facet("tenant", "Tenant", "started in 24 h", found.tenants),
        facet("error", "Error", "dead", found.errors),
        facet("worker", "Worker", "running", found.workers, found.sessions),
    ]
    return [one for one in all_of if one.values]


_ORDER = (
    JobState.READY,
    JobState.RUNNING,
    JobState.RETRYING,
    JobState.BLOCKED,
    JobState.SCHEDULED,
    JobState.COMPLETED,
    JobState.CANCELLED,
    JobState.DEAD,
)


# -- suggestions -------------------------------------------------------------------------------------


def suggestions(typed: str, counts: Mapping[JobState, Count], found: Values) -> list[dict[str, Any]]:
    """What the last word of the search may become: fields, then values with counts, then text."""
    sign, word = ("-", typed[1:]) if typed.startswith("-") else ("", typed)
    name, colon, start = word.partition(":")
    named: dict[str, Mapping[str, int]] = {
        "state": {str(state): counts[state].number for state in _ORDER if state in counts},
        "queue": found.queues,
        "task": found.tasks,
        "tenant": found.tenants,
        "error": found.errors,
        "worker": {},
    }
    groups: list[dict[str, Any]] = []
    if colon:
        options = _starting(named.get(name, {}), start, 9)
        if name == "worker":
            options = [
                (worker, count)
                for worker, count in _starting(found.workers, start, 9)
                if worker in found.sessions
            ]
        real = found.sessions if name == "worker" else {}
        groups.append({"title": "Values", "items": [
            {"insert": f"{sign}{_quoted(name, real.get(one, one))} ",
             "text": f"{name}:{one}", "hint": "", "count": short(count) if count else ""}
            for one, count in options
        ]})  # fmt: skip
    else:
        lower = word.lower()
        fields = [one for one in FIELDS if lower in one.lower()]
        fields.sort(key=lambda one: not one.startswith(lower))
        groups.append({"title": "Fields", "items": [
            {"insert": f"{sign}{one.replace('NAME', '')}{'' if one.endswith('NAME') else ':'}",
             "text": f"{one}:", "hint": FIELDS[one], "count": ""}
            for one in fields[:6 if lower else 9]
        ]})  # fmt: skip
        if lower:
            hits = [
                (f"{field}:{one}", _quoted(field, one), count)
                for field, values in named.items()
                for one, count in _starting(values, lower, 4)
            ]
            groups.append({"title": "Values", "items": [
                {"insert": f"{sign}{insert} ", "text": text, "hint": "",
                 "count": short(count) if count else ""}
                for text, insert, count in hits[:8]
            ]})  # fmt: skip
            groups.append({"title": "Text", "items": [
                {"insert": f"{word} ", "text": f"“{word}” in tasks, arguments and errors", "hint": "",
                 "count": ""}
            ]})  # fmt: skip
    return [group for group in groups if group["items"]]


def _starting(values: Mapping[str, int], typed: str, most: int) -> list[tuple[str, int]]:
    """Values that hold what was typed; those that begin with it come first, then the larger."""
    lower = typed.lower()
    hits = [(one, count) for one, count in values.items() if lower in one.lower()]
    hits.sort(key=lambda hit: (not hit[0].lower().startswith(lower), -hit[1], hit[0]))
    return hits[:most]


def _quoted(name: str, value: str) -> str:
    return joined([f"{name}:{value}"])


def goals(typed: str, found: Values) -> list[dict[str, str]]:
    """Where the palette can go, beside the pages: queues and tasks with this in their name."""
    queues = [
        {"name": one, "kind": "queue", "path": f"/queues/{quote(one, safe='')}"}
        for one, _ in _starting(found.queues, typed, 5)
    ]
    tasks = [
        {"name": one, "kind": "task", "path": f"/jobs?{urlencode({'q': _quoted('task', one)})}"}
        for one, _ in _starting(found.tasks, typed, 5)
    ]
    errors = [
        {"name": one, "kind": "error", "path": f"/jobs?{urlencode({'q': _quoted('error', one)})}"}
        for one, _ in _starting(found.errors, typed, 2)
    ]
    return [*queues, *tasks, *errors]
