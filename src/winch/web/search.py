"""The words of the search box: `task:send_email state:dead args.user_id:42 attempt:>3 duration:>10s`.

This reads them; `web/finding.py` looks for the jobs. What the store has an index for becomes its filter,
arguments that tasks declare are kept apart, the rest is a test that each job must pass.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.core.gates.uses import name_of_key
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.core.values.bounds import check_length, is_int
from winch.core.values.duration import parse_duration
from winch.core.values.ids import known_as, parse_id
from winch.core.values.redact import mask_text, shown
from winch.core.values.search import text_of
from winch.storage.params import JobFilter

WORDS = ("task", "state", "queue", "tag", "group", "id", "tenant", "worker", "error", "attempt",
         "duration", "wait", "enqueued", "priority", "gate", "args.NAME")  # fmt: skip
MAX_CHARS = 1000
_STATES = tuple(str(state) for state in JobState)

Test = Callable[[JobRecord], bool]


@dataclass(frozen=True)
class Search:
    """A search as the store's filter and what else must hold."""

    which: JobFilter
    ids: tuple[str, ...] | None = None
    tests: tuple[Test, ...] = ()
    args: tuple[tuple[str, str], ...] = ()
    """Whole arguments and the values they must have; they are among the tests, too."""

    def fits(self, job: JobRecord) -> bool:
        """Whether a job that was found by other means is one of these."""
        which = self.which
        return (
            (not which.states or job.state in which.states)
            and which.task in (None, job.task)
            and which.queue in (None, job.queue)
            and (which.tag is None or which.tag in job.tags)
            and which.fingerprint in (None, job.fingerprint)
            and all(test(job) for test in self.tests)
        )


def parse_states(text: str | None) -> tuple[JobState, ...]:
    if not text:
        return ()
    names = [name.strip() for name in check_length(text, MAX_CHARS, "state").split(",") if name.strip()]
    for name in names:
        if name not in _STATES:
            raise ConfigError(
                f"state must be one of {', '.join(_STATES)}, got {name!r}{did_you_mean(name, _STATES)}"
            )
    return tuple(JobState(name) for name in dict.fromkeys(names))


def parse(
    q: str | None = None,
    *,
    state: str | None = None,
    queue: str | None = None,
    task: str | None = None,
    tag: str | None = None,
    group: str | None = None,
) -> Search:
    """Read the search box and the separate filters; raises ConfigError with the reason."""
    filters: dict[str, Any] = {"queue": queue, "task": task, "tag": tag, "fingerprint": group}
    states = parse_states(state)
    tests: list[Test] = []
    args: list[tuple[str, str]] = []
    ids: tuple[str, ...] | None = None
    try:
        words = shlex.split(check_length(q or "", MAX_CHARS, "the search"))
    except ValueError as error:
        raise ConfigError(f"the search has an open quotation mark: {q!r}") from error
    for word in words:
        name, colon, value = word.partition(":")
        if colon and value and len(name) > 1 and name[0] == "-":
            excluded, states = _excluded(name[1:], value, states)
            tests += excluded
            continue
        if not colon:
            if _is_id(word):
                ids = (parse_id(word),)
            else:
                tests.append(_text_test(word))
        elif not value:
            raise ConfigError(f"{name}: needs a value, like {name}:x")
        elif name == "state":
            states = parse_states(value)
        elif name in ("task", "queue", "tag"):
            filters[name] = value
        elif name == "group":
            filters["fingerprint"] = value
        elif name == "id":
            ids = (known_as(value),)
        else:
            tests.append(_test(name, value))
            if name.startswith("args."):
                args.append((name.removeprefix("args."), value))
    for name in ("queue", "task", "tag", "fingerprint"):
        filters[name] = filters[name] or None
    return Search(JobFilter(states=states, **filters), ids, tuple(tests), tuple(args))


def _excluded(
    name: str, value: str, states: tuple[JobState, ...]
) -> tuple[list[Test], tuple[JobState, ...]]:
    """What `-name:value` leaves: states by the store's filter, the rest by a test of each job."""
    if name == "state":
        gone = parse_states(value)
        return [], tuple(state for state in states or tuple(JobState) if state not in gone)
    fields: dict[str, Test] = {
        "task": lambda job: job.task == value,
        "queue": lambda job: job.queue == value,
        "tag": lambda job: value in job.tags,
        "group": lambda job: job.fingerprint == value,
        "id": lambda job: job.id == value,
    }
    holds = fields[name] if name in fields else _test(name, value)
    return [lambda job: not holds(job)], states


def _is_id(word: str) -> bool:
    try:
        parse_id(word)
    except ConfigError:
        return False
    return True


def _text_test(word: str) -> Test:
    wanted = word.lower()

    def holds(job: JobRecord) -> bool:
        if wanted in job.task.lower() or _is_in(wanted, _error_of(job), mask_text):
            return True
        return _is_in(wanted, job.args, _shown_args)

    return holds


def _is_in(wanted: str, text: str, masked: Callable[[str], str]) -> bool:
    """Whether the text as it is shown holds `wanted`. Few texts do, so few are masked."""
    return wanted in text.lower() and wanted in masked(text).lower()


def _error_of(job: JobRecord) -> str:
    return "" if job.error is None else f"{job.error.type}: {job.error.message}"


def _shown_args(args: str) -> str:
    return msgspec.json.encode(shown(args)).decode()


def _test(name: str, value: str) -> Test:
    if name.startswith("args."):
        return _args_test(name.removeprefix("args.").split("."), value)
    match name:
        case "tenant":
            return lambda job: job.tenant == value
        case "worker":
            return lambda job: value in (job.session, *(entry.session for entry in job.history))
        case "gate":
            return lambda job: job.gate is not None and value in (job.gate, name_of_key(job.gate))
        case "error":
            wanted = value.lower()
            return lambda job: _is_in(wanted, _error_of(job), mask_text)
        case "attempt":
            compare = _number(value, "attempt")
            return lambda job: compare(job.attempt)
        case "priority":
            compare = _number(value, "priority")
            return lambda job: compare(job.priority)
        case "duration":
            compare = _span(value, "duration")
            return lambda job: _took(job) is not None and compare(_took(job))
        case "wait":
            compare = _span(value, "wait")
            return lambda job: job.claimed_at is not None and compare(job.claimed_at - job.run_at)
        case "enqueued":
            compare = _span(value, "enqueued")
            return lambda job: compare(datetime.now(UTC) - job.created_at)
    raise ConfigError(
        f"no search word {name!r}{did_you_mean(name, WORDS)}; there are {', '.join(WORDS)}"
    )


def _took(job: JobRecord) -> timedelta | None:
    """How long the job ran, or has run so far."""
    if job.claimed_at is None:
        return None
    if job.state is JobState.RUNNING:
        return datetime.now(UTC) - job.claimed_at
    return None if job.finished_at is None else job.finished_at - job.claimed_at


def _args_test(path: list[str], value: str) -> Test:
    hint = msgspec.json.encode(path[-1]).decode()

    def holds(job: JobRecord) -> bool:
        if hint not in job.args:  # a hundred thousand are looked at, and few have it
            return False
        found = shown(job.args)
        for part in path:
            if not isinstance(found, dict) or part not in found:
                return False
            found = found[part]
        return text_of(found) == value or json.dumps(found) == value

    return holds


def _number(value: str, name: str) -> Callable[[Any], bool]:
    sign, rest = (value[0], value[1:]) if value[:1] in "<>" else ("=", value)
    if not is_int(rest):
        raise ConfigError(f"{name}: takes a number, like {name}:3 or {name}:>3, got {value!r}")
    return _compare(sign, int(rest))


def _span(value: str, name: str) -> Callable[[Any], bool]:
    if value[:1] not in ("<", ">"):
        raise ConfigError(f"{name}: takes < or > and a duration, like {name}:>10s, got {value!r}")
    return _compare(value[0], parse_duration(value[1:], name))


def _compare(sign: str, bound: Any) -> Callable[[Any], bool]:
    if sign == "<":
        return lambda found: bool(found < bound)
    if sign == ">":
        return lambda found: bool(found > bound)
    return lambda found: bool(found == bound)
