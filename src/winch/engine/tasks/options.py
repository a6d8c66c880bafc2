"""What may be stored about a task and about one enqueue; checked here, with the error users see."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.core.job import PRIORITIES, PRIORITY_RANGE
from winch.core.lifecycle import JobState
from winch.core.policy.labels import check_labels
from winch.core.policy.limits import Breaker, Fifo, Limit, Rate, RetryBudget
from winch.core.policy.retention import Retention
from winch.core.policy.retry import DEFAULT_RETRY, Retry, StoredRetry, to_stored
from winch.core.policy.unique import Unique
from winch.core.values import codec
from winch.core.values.duration import Duration, parse_duration
from winch.core.values.ids import ALIAS_HEADER, is_alias, known_as

DEFAULT_TIMEOUT = timedelta(minutes=15)
MOST_COLLECTED = 2000
MOST_SEARCHED = 8
MOST_SLOTS = 1024
"""The highest concurrency of one worker process, and so of one task's slots."""


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A task's own defaults."""

    queue: str = "default"
    priority: int = 0
    retry: Retry = DEFAULT_RETRY
    timeout: timedelta | None = DEFAULT_TIMEOUT
    expires: timedelta | None = None
    retention: Retention | None = None
    tags: tuple[str, ...] = ()
    isolate: str | None = None
    heartbeat: timedelta | None = None
    collect: int | None = None
    collect_wait: timedelta = timedelta(milliseconds=50)
    version: int = 1
    unique: Unique | None = None
    limit: tuple[Limit | Rate, ...] = ()
    breaker: Breaker | None = None
    retry_budget: RetryBudget | None = None
    scope: tuple[str, ...] = ()
    enqueue_rate: Rate | None = None
    search: tuple[str, ...] = ()
    needs: dict[str, str] = {}
    slots: int = 1


class EnqueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `using(…)` stored about one enqueue; None leaves the task's own default."""

    queue: str | None = None
    priority: int | None = None
    delay: timedelta | None = None
    run_at: datetime | None = None
    expires: timedelta | None = None
    timeout: timedelta | Literal["none"] | None = None
    retry: Retry | None = None
    retention: Retention | None = None
    tags: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    id: str | None = None
    unique: Unique | None = None
    fifo: Fifo | None = None
    tenant: str | None = None
    conn: object = None


class StoredOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of the options that travels with the job, for the worker to read."""

    timeout: str | None = None
    """An ISO duration, or "none" for no limit. As text: msgspec reads no union of the two."""
    retry: StoredRetry | None = None
    attempts: int | None = None
    """How many attempts an operator gives the job, whatever the policy says."""
    from_step: tuple[str, str] | None = None
    """The step from which an operator retries the job, and the mark of that order."""
    dead_count: int | None = None
    dead_bytes: int | None = None
    """How many dead jobs of the task are kept, read by the store (`core.retention`)."""


def stored_timeout(text: str) -> timedelta | None:
    """A stored time limit read back; None is no limit. Raises msgspec.ValidationError."""
    return None if text == "none" else msgspec.convert(text, timedelta)


def task_options(given: Mapping[str, Any], known: Sequence[str]) -> TaskOptions:
    """Check what `@app.task(…)` was given."""
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if name not in TaskOptions.__struct_fields__:
            _refuse("task", name, known)
        checked[name] = _CHECKS[name](value)
    if "collect" not in checked and "collect_wait" in checked:
        raise ConfigError("collect_wait goes with collect: @app.task(collect=100, collect_wait='50ms')")
    for other in ("isolate", "heartbeat"):
        if "collect" in checked and other in checked:
            raise ConfigError(f"a task takes collect or {other}, not both")
    return TaskOptions(**checked)


def enqueue_options(given: Mapping[str, Any], known: Sequence[str]) -> EnqueueOptions:
    """Check what `using(…)` was given."""
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if name not in EnqueueOptions.__struct_fields__:
            _refuse("using", name, known)
        if value is None and name != "timeout":
            continue
        checked[name] = "none" if value is None else _CHECKS[name](value)
    if "delay" in checked and "run_at" in checked:
        raise ConfigError("using() takes delay or run_at, not both")
    if isinstance(alias := given.get("id"), str) and is_alias(alias):
        checked["headers"] = {**checked.get("headers", {}), ALIAS_HEADER: alias}
    return EnqueueOptions(**checked)


def stored_options(options: EnqueueOptions, own: Retention | None = None) -> str | None:
    """The JSON text of what travels with the job, or None when there is nothing. `own`: the task's."""
    kept = options.retention or own
    if options.timeout is None and options.retry is None and kept is None:
        return None
    stored = StoredOptions(
        timeout=None if options.timeout is None else msgspec.to_builtins(options.timeout),
        retry=None if options.retry is None else to_stored(options.retry),
        dead_count=None if kept is None else kept.count,
        dead_bytes=None if kept is None else kept.bytes,
    )
    return None if stored == StoredOptions() else msgspec.json.encode(stored).decode()


def with_policies(given: EnqueueOptions, own: TaskOptions) -> EnqueueOptions:
    """The same with the task's policies in it, for a job whose worker does not know the task."""
    timeout, retry = given.timeout, given.retry
    if timeout is None and own.timeout != DEFAULT_TIMEOUT:
        timeout = own.timeout or "none"
    if retry is None and own.retry != DEFAULT_RETRY:
        retry = own.retry
    return msgspec.structs.replace(given, timeout=timeout, retry=retry)


def with_attempts(options: str | None, attempts: int) -> str:
    """Stored options with an operator's number of attempts; others in them stay as they are."""
    return _with(options, "attempts", attempts)


def with_from_step(options: str | None, step: str, mark: str) -> str:
    """Stored options with an operator's order to retry from a step."""
    return _with(options, "from_step", (step, mark))


def _with(options: str | None, name: str, value: object) -> str:
    try:
        stored = msgspec.json.decode(options or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise ConfigError(f"the job's stored options are malformed: {options!r}") from None
    return msgspec.json.encode({**stored, name: value}).decode()


def _refuse(where: str, name: str, known: Sequence[str]) -> None:
    raise ConfigError(f"{where}() has no option {name!r}{did_you_mean(name, known)}")


def check_queue(value: object) -> str:
    """A queue's name: 1 to 256 printable characters, no comma or colon (they separate `-Q` entries),
    not `*`, no leading `-` (they choose queues there)."""
    name = _name(value, "queue", forbidden=",:")
    if name == "*" or name.startswith("-"):
        raise ConfigError(
            f"queue must not be '*' or begin with '-', got {name!r}: `-Q '*,-slow'` gives both a meaning"
        )
    return name


def _name(value: object, what: str, forbidden: str = "") -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{what} must be a non-empty text, got {value!r}")
    if len(value) > codec.MAX_NAME_CHARS:
        raise ConfigError(
            f"{what} must have at most {codec.MAX_NAME_CHARS} characters, got {len(value)}"
        )
    bad = next((c for c in value if not c.isprintable() or c in forbidden), None)
    if bad is not None:
        raise ConfigError(f"{what} must not contain {bad!r}, got {value!r}")
    return value


def check_states(given: str | Sequence[str] | None) -> tuple[JobState, ...]:
    """The states of a filter by their names; None is any state."""
    if given is None:
        return ()
    names = [given] if isinstance(given, str) else list(given)
    known = [str(state) for state in JobState]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"state must be one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}"
            )
    return tuple(JobState(name) for name in names)


def _priority(value: object) -> int:
    if isinstance(value, str):
        if value not in PRIORITIES:
            raise ConfigError(
                f"priority must be a whole number or one of {', '.join(PRIORITIES)}, got {value!r}"
                f"{did_you_mean(value, PRIORITIES)}"
            )
        return PRIORITIES[value]
    if not isinstance(value, int) or isinstance(value, bool) or value not in PRIORITY_RANGE:
        raise ConfigError(
            f"priority must be a whole number from {PRIORITY_RANGE.start} to "
            f"{PRIORITY_RANGE.stop - 1}, got {value!r}"
        )
    return value


def _run_at(value: object) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ConfigError(f"run_at must be a datetime with a time zone, got {value!r}")
    return value.astimezone(UTC)


def _retry(value: object) -> Retry:
    if not isinstance(value, Retry):
        raise ConfigError(f"retry must be a Retry policy such as Retry.fixed('5s'), got {value!r}")
    return value


def _tags(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"tags must be a list of texts, got {value!r}")
    return tuple(dict.fromkeys(_name(tag, "tag") for tag in value))


def _headers(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"headers must be a mapping of text to text, got {value!r}")
    for key, text in value.items():
        _name(key, "header name")
        if not isinstance(text, str):
            raise ConfigError(f"header {key!r} must be text, got {text!r}")
        codec.check_tree(text, f"header {key!r}")
    return dict(value)


def _timeout(value: Any) -> timedelta | None:
    if value is None:
        return None
    parsed = parse_duration(value, "timeout")
    if not parsed:
        raise ConfigError("timeout must be longer than zero; timeout=None means no limit")
    return parsed


def _heartbeat(value: Duration) -> timedelta:
    parsed = parse_duration(value, "heartbeat")
    if parsed < timedelta(milliseconds=100):
        raise ConfigError(f"heartbeat must be at least 100ms, got {value!r}")
    return parsed


def _collect(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_COLLECTED:
        raise ConfigError(f"collect must be a whole number from 1 to {MOST_COLLECTED}, got {value!r}")
    return value


def _id(value: str | uuid.UUID) -> str:
    return known_as(value)


def _duration(name: str) -> Any:
    def check(value: Duration) -> timedelta:
        return parse_duration(value, name)

    return check


def _retention(value: Duration | Retention) -> Retention:
    if isinstance(value, Retention):
        return value
    return Retention(parse_duration(value, "retention"))


def _unique(value: object) -> Unique:
    if isinstance(value, Unique):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"unique must be a key or Unique('argument', …), got {value!r}")
    return Unique(key=value)


def _limit(value: object) -> tuple[Limit | Rate, ...]:
    given = value if isinstance(value, list | tuple) else [value]
    for one in given:
        if not isinstance(one, Limit | Rate) or isinstance(one, RetryBudget):
            raise ConfigError(f"limit must be Limit(…), Rate(…) or a list of them, got {one!r}")
    return tuple(given)


def _breaker(value: object) -> Breaker:
    if not isinstance(value, Breaker):
        raise ConfigError(f"breaker must be Breaker(…), got {value!r}")
    return value


def _retry_budget(value: object) -> RetryBudget:
    if not isinstance(value, RetryBudget):
        raise ConfigError(f"retry_budget must be RetryBudget('200/m', …), got {value!r}")
    return value


def _enqueue_rate(value: object) -> Rate:
    if not isinstance(value, Rate) or isinstance(value, RetryBudget):
        raise ConfigError(f"enqueue_rate must be Rate(100, per='1m', …), got {value!r}")
    return value


def _search(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"search must be a list of argument names, like ['order_id'], got {value!r}")
    if len(value) > MOST_SEARCHED:
        raise ConfigError(f"search takes up to {MOST_SEARCHED} arguments, got {len(value)}")
    return tuple(dict.fromkeys(_name(one, "an argument in search") for one in value))


def _scope(value: object) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        raise ConfigError(f"scope must be a text or a list of texts, got {value!r}")
    return tuple(dict.fromkeys(_name(one, "scope", forbidden="=") for one in given))


def _fifo(value: object) -> Fifo:
    return value if isinstance(value, Fifo) else Fifo(_name(value, "fifo"))


def _tenant(value: object) -> str:
    return _name(value, "tenant", forbidden="=")


def _isolate(value: object) -> str:
    if value != "process":
        raise ConfigError(f"isolate must be 'process' (or left out), got {value!r}")
    return "process"


def _version(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise ConfigError(f"version must be a whole number from 1 to {2**31 - 1}, got {value!r}")
    return value


def _slots(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_SLOTS:
        raise ConfigError(f"slots must be a whole number from 1 to {MOST_SLOTS}, got {value!r}")
    return value


_CHECKS: dict[str, Any] = {
    "isolate": _isolate,
    "heartbeat": _heartbeat,
    "collect": _collect,
    "collect_wait": _duration("collect_wait"),
    "version": _version,
    "queue": check_queue,
    "priority": _priority,
    "retry": _retry,
    "timeout": _timeout,
    "expires": _duration("expires"),
    "retention": _retention,
    "delay": _duration("delay"),
    "run_at": _run_at,
    "tags": _tags,
    "headers": _headers,
    "id": _id,
    "unique": _unique,
    "limit": _limit,
    "breaker": _breaker,
    "retry_budget": _retry_budget,
    "scope": _scope,
    "enqueue_rate": _enqueue_rate,
    "search": _search,
    "needs": lambda value: check_labels(value, "needs"),
    "slots": _slots,
    "fifo": _fifo,
    "tenant": _tenant,
    "conn": lambda conn: conn,
}
