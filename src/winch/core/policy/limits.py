"""Limits as a task declares them: how many at once, how many in a time, and when to hold back.

They are policies, frozen values; `uses` turns them into the gates that a job carries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.core.gates.uses import (
    BUCKET,
    FIFO,
    FIXED,
    LIMIT,
    RATE,
    SCOPE,
    SLIDING,
    BreakerSpec,
    GateSpec,
    GateUse,
)
from winch.core.values.bounds import check_length, is_int
from winch.core.values.duration import Duration, parse_duration

MAX_KEY_CHARS = 200
MAX_RATE_CHARS = 64
KINDS = (FIXED, SLIDING, BUCKET)
_MICROSECOND = timedelta(microseconds=1)
_UNITS = {"s": "1s", "m": "1m", "h": "1h", "d": "1d"}


class Limit:
    """Run at most `n` jobs at once, counted over the whole fleet.

        @app.task(limit=winch.Limit(5, key="customer_id"))
        def sync(customer_id: int) -> None: ...

    It counts the jobs of the task, those of each value of the argument `key`, or those of all tasks
    with the same `scope`. With `weight` a job counts for more than one.
    """

    __slots__ = ("key", "n", "scope", "weight")
    kind = LIMIT

    def __init__(
        self, n: int, *, key: str | None = None, scope: str | None = None, weight: int = 1
    ) -> None:
        self.n: int = _whole(n, "Limit")
        self.key: str | None = None if key is None else _text(key, "Limit key")
        self.scope: str | None = None if scope is None else _text(scope, "Limit scope")
        self.weight: int = _whole(weight, "Limit weight")
        if self.weight > self.n:
            raise ConfigError(f"Limit({n}, weight={weight}) would never let a job run")

    @property
    def spec(self) -> GateSpec:
        """The numbers of this limit, as the store keeps them."""
        return GateSpec(self.n)

    def __repr__(self) -> str:
        return _representation("Limit", self.n, key=self.key, scope=self.scope)


class Rate:
    """Start at most `n` jobs within `per`, counted over the whole fleet: `Rate("5/s")`, `Rate(5,
    per="1s")`.

    It counts the jobs of the task, those of each value of the argument `key`, or those of all tasks
    with the same `scope`.

    - `kind="sliding"`: no period of this length has more than `n`.
    - `kind="fixed"`: windows of the clock. Around the edge of two windows up to twice as many may
      start.
    - `kind="bucket"`: a steady flow, of which `burst` may start at once.

    The rate counts claims. A handler starts a moment after its claim.
    """

    __slots__ = ("burst", "how", "is_for_retries", "key", "n", "per", "scope", "weight")
    kind = RATE

    def __init__(
        self,
        n: int | str,
        *,
        per: Duration | None = None,
        kind: str = SLIDING,
        burst: int | None = None,
        key: str | None = None,
        scope: str | None = None,
        weight: int = 1,
    ) -> None:
        if isinstance(n, str):
            if per is not None:
                raise ConfigError(f"Rate({n!r}) already contains a period; leave out per={per!r}")
            n, per = parse_rate(n, "Rate")
        elif per is None:
            raise ConfigError(f"Rate({n!r}) needs a time: Rate({n!r}, per='1s') or Rate('{n}/s')")
        self.n: int = _whole(n, "Rate")
        self.per: timedelta = parse_duration(per, "Rate per")
        if self.per < timedelta(milliseconds=1):
            raise ConfigError(f"Rate per must be at least 1ms, got {per!r}")
        if kind not in KINDS:
            hint = did_you_mean(kind, KINDS) if isinstance(kind, str) else ""
            raise ConfigError(f"Rate kind must be one of {', '.join(KINDS)}, got {kind!r}{hint}")
        if burst is not None and kind != BUCKET:
            raise ConfigError(f"Rate burst goes with kind='bucket', got kind={kind!r}")
        self.how = kind
        self.burst: int | None = None if burst is None else _whole(burst, "Rate burst")
        self.key: str | None = None if key is None else _text(key, "Rate key")
        self.scope: str | None = None if scope is None else _text(scope, "Rate scope")
        self.weight: int = _whole(weight, "Rate weight")
        self.is_for_retries: bool = False
        if self.weight > (self.burst or self.n):
            raise ConfigError(f"Rate({n}, weight={weight}) would never let a job start")

    @property
    def spec(self) -> GateSpec:
        """The numbers of this rate, as the store keeps them."""
        return GateSpec(self.n, self.per // _MICROSECOND, self.how, self.burst or 0)

    def __repr__(self) -> str:
        return _representation(
            "Rate", self.n, per=str(self.per), kind=self.how, key=self.key, scope=self.scope
        )


class RetryBudget(Rate):
    """Allow at most this many retries in a time, such as "200/m", of the task or `scope`, in the whole
    fleet.

    A retry over the budget waits. It loses no attempt.
    """

    __slots__ = ()

    def __init__(self, budget: str, *, scope: str | None = None) -> None:
        n, per = parse_rate(budget, "RetryBudget")
        super().__init__(n, per=per, kind=BUCKET, scope=scope)
        self.is_for_retries = True

    def __repr__(self) -> str:
        return f"RetryBudget({self.n} per {self.per}, scope={self.scope!r})"


class Breaker:
    """Hold the jobs of a task or `scope` while too many of them fail.

        @app.task(breaker=winch.Breaker(failures=0.5, of=20, window="1m", hold="30s"))
        def charge(order_id: int) -> None: ...

    It opens when the share `failures` of at least `of` attempts fails within `window`. After `hold` one
    job runs as a probe. When the probe succeeds, the other jobs follow, a few at first. A held job
    loses no attempt.
    """

    __slots__ = ("scope", "spec")

    def __init__(
        self,
        *,
        scope: str | None = None,
        failures: float = 0.5,
        of: int = 10,
        window: Duration = "60s",
        hold: Duration = "30s",
        probes: int = 1,
    ) -> None:
        if not isinstance(failures, int | float) or not 0 < failures <= 1:
            raise ConfigError(f"Breaker failures must be a share such as 0.5, got {failures!r}")
        self.scope: str | None = None if scope is None else _text(scope, "Breaker scope")
        self.spec: BreakerSpec = BreakerSpec(
            failures=float(failures),
            of=_whole(of, "Breaker of"),
            window=max(1, parse_duration(window, "Breaker window") // _MICROSECOND),
            hold=max(1, parse_duration(hold, "Breaker hold") // _MICROSECOND),
            probes=_whole(probes, "Breaker probes"),
        )

    def __repr__(self) -> str:
        return _representation(
            "Breaker", None, scope=self.scope, failures=self.spec.failures, of=self.spec.of
        )


class Fifo:
    """Run the jobs of this key one at a time, in the order in which they were enqueued.

        ship.using(fifo=winch.Fifo("order:7", on_death="block")).enqueue(7)

    When a job of the key dies, `on_death="skip"` continues with the next one. "block" holds the key
    until the dead job is retried or deleted.
    """

    __slots__ = ("key", "on_death")

    def __init__(self, key: str, *, on_death: str = "skip") -> None:
        self.key: str = _text(key, "fifo")
        if on_death not in ("skip", "block"):
            raise ConfigError(f"fifo on_death must be 'skip' or 'block', got {on_death!r}")
        self.on_death = on_death

    def __repr__(self) -> str:
        return f"Fifo({self.key!r}, on_death={self.on_death!r})"


def parse_rate(text: object, what: str) -> tuple[int, timedelta]:
    """ "200/m", "5/s", "100/10s": how many in which time."""
    given = check_length(text, MAX_RATE_CHARS, what) if isinstance(text, str) else ""
    count, slash, per = (part.strip() for part in given.partition("/"))
    if not slash or not is_int(count) or int(count) < 1:
        raise ConfigError(f"{what} must be a number per time such as '200/m' or '5/10s', got {text!r}")
    return int(count), parse_duration(_UNITS.get(per, per), what)


def name_of(one: Limit | Rate, task: str) -> str:
    """What a person sets it by: its kind, what it is about, and the argument it goes by."""
    kind = "budget" if isinstance(one, RetryBudget) else one.kind
    name = f"{kind}:{one.scope or task}"
    return name if one.key is None else f"{name}:{one.key}"


def uses(
    task: str,
    limits: Sequence[Limit | Rate],
    breaker: Breaker | None,
    scopes: Sequence[str],
    fifo: Fifo | None,
    value_of: Callable[[str], Any],
) -> tuple[GateUse, ...]:
    """The gates of one job; `value_of` gives an argument of it. A job is held at the first that is
    closed: at a scope or its FIFO key rather than at a limit, whose permits others could use."""
    found: list[GateUse] = []
    if breaker is not None:
        found.append(GateUse(f"scope:{breaker.scope or task}", SCOPE, breaker=breaker.spec))
    known = {use.key for use in found}
    found += [GateUse(f"scope:{scope}", SCOPE) for scope in scopes if f"scope:{scope}" not in known]
    if fifo is not None:
        found.append(GateUse(f"fifo:{fifo.key}", FIFO, blocks_on_death=fifo.on_death == "block"))
    for one in sorted(limits, key=lambda one: one.kind == RATE):
        name = name_of(one, task)
        key = name if one.key is None else f"{name}={value_text(value_of(one.key))}"
        spec = one.spec
        found.append(
            GateUse(
                key,
                one.kind,
                name,
                n=spec.n,
                per=spec.per,
                how=spec.how,
                burst=spec.burst,
                weight=one.weight,
                is_for_retries=isinstance(one, Rate) and one.is_for_retries,
            )
        )
    return tuple(found)


def scopes_of(
    limits: Sequence[Limit | Rate], breaker: Breaker | None, own: Sequence[str]
) -> tuple[str, ...]:
    """The scopes that a brake can hold a task by."""
    named = [one.scope for one in limits if one.scope is not None]
    if breaker is not None and breaker.scope is not None:
        named.append(breaker.scope)
    return tuple(dict.fromkeys([*own, *named]))


def value_text(value: Any) -> str:
    """An argument's value as the end of a key: a hash where it is long or cannot be read."""
    text = (
        value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic").decode()
    )
    if len(text) > MAX_KEY_CHARS or not text.isprintable():
        text = hashlib.sha256(text.encode()).hexdigest()
    return text


def _whole(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000_000:
        raise ConfigError(f"{what} must be a whole number of at least 1, got {value!r}")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ConfigError(f"{what} must be a non-empty printable text, got {value!r}")
    if len(value) > MAX_KEY_CHARS:
        raise ConfigError(f"{what} must have at most {MAX_KEY_CHARS} characters, got {len(value)}")
    if "=" in value and what != "fifo":
        raise ConfigError(f"{what} must not contain '=', got {value!r}")
    return value


def _representation(name: str, n: int | None, **options: object) -> str:
    parts = [] if n is None else [str(n)]
    parts += [f"{key}={value!r}" for key, value in options.items() if value is not None]
    return f"{name}({', '.join(parts)})"
