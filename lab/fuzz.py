"""Feed malformed input to everything that parses input: it answers, or refuses with a message.

    python -m lab.fuzz                      2,000 inputs for each target
    python -m lab.fuzz --only cron --examples 100000

A target may raise a WinchError, which names the mistake. Anything else, an answer of 500 over HTTP, and
anything that takes longer than a second, is a finding. Each text is also fed repeated, 20,000 characters
long.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import httpx
import hypothesis
from hypothesis import strategies as st

from winch import App
from winch.core import flow, steps
from winch.core.errors import WinchError
from winch.core.policy import cron, schedule
from winch.core.values import codec, duration, size
from winch.engine.base import settings
from winch.engine.base.encryption import Keyring
from winch.engine.worker.queues.order import parse_queues
from winch.web import search
from winch.web.mount import build
from winch.web.site import SiteConfig

SLOW = 1.0
LONG = 20_000
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Target:
    """`eat` is fed with what `food` makes, and may raise what `may_raise` names."""

    food: st.SearchStrategy[Any]
    eat: Callable[[Any], object]
    may_raise: tuple[type[Exception], ...] = (WinchError,)


def words(*some: str) -> st.SearchStrategy[str]:
    """Texts made of these and of anything else."""
    return st.lists(st.one_of(st.sampled_from(some), st.text(max_size=6)), max_size=8).map("".join)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
JSON_TEXT = st.one_of(
    words("{", "}", "[", "]", '"', ":", ",", "null", "1e999", "NaN", "\\u0000", "\\ud800", "-", "0.1"),
    JSON.map(json.dumps),
    st.integers(1, 3000).map(lambda depth: "[" * depth + "]" * depth),
)
CRON = words(
    "*", "*/5", "0", "59", "L", "#2", "@daily", "MON-FRI", "1-5", ",", " ", "7", "JAN", "-", "/0"
)
SPANS = words("1", "ms", "s", "m", "h", "d", "1h30m", " ", "-", "0.5", "e9", "9" * 30)
FILTERS = words(
    "state:",
    "task:",
    "took:>",
    "5s",
    "args.",
    "id:",
    " ",
    '"',
    "-",
    "ready",
    "<",
    ">",
    "age:",
    "é",
    "\x00",
)


def _cron(text: str) -> object:
    return list(islice(cron.windows(cron.check_cron(text), UTC, cron.Dst.ONCE, NOW), 3))


def _settings(pairs: dict[str, str]) -> object:
    env = {f"WINCH_{name.upper()}": value for name, value in pairs.items()}
    return settings.load(env=env, folder=Path("/nonexistent"))


class Http:
    """The HTTP API on a store in memory; a server error is a finding."""

    PATHS: ClassVar[Sequence[str]] = (
        *("/jobs", "/jobs:bulk", "/jobs/x", "/queues", "/queues/q/claim", "/jobs/x/complete", "/stats"),
        *("/schedules", "/dead:replay", "/signals/s", "/flows", "/autoscale", "/jobs/x/why", "/workers"),
    )

    def __init__(self) -> None:
        app = App("memory://")
        app.task(name="add")(_add)
        self._site = build(app, SiteConfig(auth="open"))
        self._loop = asyncio.new_event_loop()

    def __call__(self, asked: tuple[str, str, str, bytes]) -> object:
        return self._loop.run_until_complete(self._ask(*asked))

    async def _ask(self, method: str, path: str, query: str, body: bytes) -> int:
        transport = httpx.ASGITransport(self._site, raise_app_exceptions=False)
        headers = {"host": "localhost", "content-type": "application/json", "idempotency-key": "k"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            params = {"q": query, "cursor": query, "state": query, "limit": query, "queue": query}
            answer = await client.request(
                method, f"/api/v1{path}", params=params, content=body, headers=headers
            )
        if answer.status_code >= 500:
            raise AssertionError(f"{method} {path} answered {answer.status_code}: {answer.text}")
        return answer.status_code


def _add(a: int, b: int = 1) -> int:
    return a + b


REQUESTS = st.tuples(
    st.sampled_from(["GET", "POST", "DELETE", "PATCH"]),
    st.sampled_from(Http.PATHS),
    st.one_of(FILTERS, st.text(max_size=20)).filter(lambda text: text.isprintable()),
    st.one_of(
        JSON_TEXT.map(lambda text: text.encode(errors="replace")),
        st.binary(max_size=50),
        st.fixed_dictionaries({"task": st.sampled_from(["add", "os.system", ""]), "args": JSON}).map(
            lambda value: json.dumps(value).encode()
        ),
    ),
)
NAMES = st.sampled_from([*settings.Settings.__struct_fields__, "nobody_knows"])

TARGETS: dict[str, Target] = {
    "payload": Target(JSON_TEXT, codec.loads_strict),
    "value": Target(JSON, lambda value: codec.loads(codec.dumps(value))),
    "result": Target(JSON, lambda value: codec.loads(codec.dumps_result(value))),
    "text": Target(st.text(), lambda text: codec.clean_text(text, 100)),
    "cron": Target(CRON, _cron),
    "zone": Target(words("Europe/", "London", "UTC", "..", "/", "etc"), schedule.zone_of),
    "duration": Target(SPANS, duration.parse_duration),
    "rate": Target(words("100", "/", "s", "m", "h", "-1", "0", "1e9"), duration.parse_rate),
    "size": Target(words("64", "KB", "MB", "GB", "1.5", "-", " ", "9" * 30), size.parse_size),
    "inputs": Target(JSON_TEXT, flow.read_inputs),
    "steps": Target(JSON_TEXT, steps.read),
    "search": Target(FILTERS, search.parse),
    "queues": Target(
        words("critical:5", ",", "default", ":", "0", "-1", " ", "²"),
        lambda text: parse_queues(text, random.Random(0)),
    ),
    "keys": Target(words("k1:", "AAAA", "=", ",", ":"), Keyring.parse),
    "config": Target(st.dictionaries(NAMES, SPANS, max_size=3), _settings),
    "http": Target(REQUESTS, Http()),
}


def stretched(food: Any) -> tuple[str, ...]:
    """A text again and again, up to LONG characters: time that grows faster than length shows there."""
    if not isinstance(food, str) or not food:
        return ()
    return (food * (LONG // len(food)), food[:-1] + food[-1] * LONG)


def findings(name: str, *, examples: int) -> str:
    """Feed a target; the smallest input that makes it fail, in words, or nothing."""
    target = TARGETS[name]

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(target.food)
    def feed(food: Any) -> None:
        for portion in (food, *stretched(food)):
            began = time.process_time()
            with contextlib.suppress(*target.may_raise):
                target.eat(portion)
            took = time.process_time() - began
            assert took < SLOW, f"it took {took:.1f} s" + (" repeated" if portion is not food else "")

    try:
        feed()
    except (Exception, hypothesis.errors.Flaky) as error:
        notes = "; ".join(getattr(error, "__notes__", ()))
        return f"{name}: {type(error).__name__}: {error} {notes}"
    return ""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=list(TARGETS), help="only this target")
    parser.add_argument("--examples", type=int, default=2000, help="for each target")
    args = parser.parse_args(argv)
    found = []
    for name in [args.only] if args.only else TARGETS:
        words_ = findings(name, examples=args.examples)
        print(words_ or f"{name}: {args.examples} inputs, nothing found", flush=True)
        found += [words_] * bool(words_)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
