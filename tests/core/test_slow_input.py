"""Parsers of outside input take time in proportion to its length, or refuse a long input at once."""

from __future__ import annotations

import ast
import ipaddress
import random
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from winch.core import flow, steps
from winch.core.errors import ConfigError, WinchError, did_you_mean
from winch.core.job import EPOCH, Failure
from winch.core.policy import cron, limits, schedule
from winch.core.policy.alerting import parse_rules
from winch.core.values import codec, duration, fingerprint, ids, ip_address, redact
from winch.core.values import size as sizes
from winch.engine.base.encryption import Keyring
from winch.engine.base.http_post import target
from winch.engine.tasks.gates import parse_limit
from winch.engine.tasks.options import check_queue
from winch.engine.worker.queues.order import parse_queues
from winch.web import search

SOURCES = Path(__file__).parents[2] / "src/winch"

# Four times the length may take four times as long; quadratic work takes sixteen times as long. A parser
# that is done within QUICK at the longest input is fast, whatever the ratio of two tiny numbers is.
QUICK = 0.005
LENGTHS = (2_000, 8_000, 32_000)
MOST_GROWTH = 9.0


def repeated(text: str, before: str = "", after: str = "") -> Callable[[int], str]:
    return lambda length: before + text * (length // len(text)) + after


# Shapes on which patterns and loops backtrack: one long run, and a run that ends in a mismatch.
SHAPES = {
    "digits": repeated("9"),
    "digits and a letter": repeated("9", after="x"),
    "a decimal": repeated("9", before="1.", after="s"),
    "dots": repeated("1."),
    "units": repeated("1h"),
    "letters": repeated("a"),
    "hex": repeated("a1", after="g"),
    "spaces": repeated(" "),
    "digits and spaces": repeated("1 "),
    "dashes": repeated("a-"),
    "colons": repeated(":"),
    "commas": repeated("1,"),
    "slashes": repeated("/"),
    "quotes": repeated("'"),
    "quoted words": repeated(" 'a"),
    "open quotation": repeated("a", before='"'),
    "backslashes": repeated("\\"),
    "brackets": repeated("["),
    "braces": repeated('{"a":'),
    "assignments": repeated('token="'),
    "bearers": repeated("token=bearer "),
    "url": repeated("a://"),
    "at signs": repeated("a:b@"),
    "stars": repeated("*/"),
    "minus": repeated("-"),
    "not ASCII": repeated("é"),
    "surrogates": repeated("\ud800"),
    "zeros": repeated("\0"),
}
PREFIXES = {
    "search": (
        "",
        "enqueued:<",
        "attempt:>",
        "priority:-",
        "args.a:",
        "args.",
        "state:",
        "task:",
        "id:",
    ),
    "cron": ("", "* * * * ", "@", "1-"),
    "rate": ("", "1/"),
    "sink": ("", "https://", "https://x:", "https://x/"),
    "queues": ("", "a:"),
    "alerts": ("", "depth=", "oldest="),
}


def _cron(text: str) -> object:
    return list(islice(cron.windows(cron.check_cron(text), schedule.zone_of("UTC"), cron.Dst.ONCE,
                                    EPOCH), 2))  # fmt: skip


def _address(text: str) -> object:
    with suppress(ValueError):
        ipaddress.ip_network(text, strict=False)
    return ip_address.is_loopback(text), ip_address.is_public(text)


PARSERS: dict[str, Callable[[str], object]] = {
    "duration": duration.parse_duration,
    "duration rate": duration.parse_rate,
    "rate": lambda text: limits.parse_rate(text, "rate"),
    "limit": parse_limit,
    "size": sizes.parse_size,
    "cron": _cron,
    "zone": schedule.zone_of,
    "id": ids.parse_id,
    "search": search.parse,
    "states": search.parse_states,
    "json": codec.loads_strict,
    "inputs": flow.read_inputs,
    "steps": steps.read,
    "clean text": lambda text: codec.clean_text(text, 1000),
    "masked text": redact.mask_text,
    "shown": redact.shown,
    "fingerprint": lambda text: fingerprint.fingerprint("t", Failure("E", text, text)),
    "queues": lambda text: parse_queues(text, random.Random(0)),
    "queue": check_queue,
    "keys": Keyring.parse,
    "alerts": parse_rules,
    "address": _address,
    "sink": lambda text: target(text, allow_private=True),
    "hint": lambda text: did_you_mean(text, search.WORDS),
}


def spent(parse: Callable[[str], object], text: str) -> float:
    """The least of three: what else runs on the machine makes a parser slow only by chance."""
    best = float("inf")
    for _ in range(3):
        began = time.thread_time()
        with suppress(WinchError):
            parse(text)
        best = min(best, time.thread_time() - began)
        if best < QUICK or best > 1.0:
            break
    return best


def growth(parse: Callable[[str], object], shape: Callable[[int], str]) -> str:
    """Where time grows faster than length: the lengths and times, else nothing."""
    before = 0.0
    for length in LENGTHS:
        took = spent(parse, shape(length))
        if took > 1.0 or (before and took > QUICK and took > MOST_GROWTH * before):
            return f"{length:,} characters took {took:.3f} s, a quarter of them {before:.4f} s"
        before = max(took, QUICK / 5)
    return ""


@pytest.mark.parametrize("name", PARSERS)
def test_time_grows_no_faster_than_the_input(name: str) -> None:
    parse = PARSERS[name]
    found = []
    for prefix in PREFIXES.get(name, ("",)):
        for shape_name, shape in SHAPES.items():
            if slow := growth(parse, lambda n, s=shape, p=prefix: p + s(n)):  # type: ignore[misc]
                found.append(f"{prefix}<{shape_name}>: {slow}")
    assert not found, "\n".join(found)


def many_keys(length: int) -> str:
    keys = ",".join(f'"{number}":0' for number in range(length // 9))
    return f"{{{keys},{keys.rpartition(',')[2]}}}"


def test_a_repeated_key_is_found_in_one_pass() -> None:
    assert not growth(codec.loads_strict, many_keys)


LONG = "9" * 5000


@pytest.mark.parametrize(
    "parse",
    [
        lambda: duration.parse_duration(LONG),
        lambda: duration.parse_duration(f"{LONG}s"),
        lambda: duration.parse_rate(f"{LONG}/s"),
        lambda: limits.parse_rate(f"{LONG}/s", "rate"),
        lambda: limits.parse_rate("²/s", "rate"),
        lambda: parse_limit(LONG),
        lambda: sizes.parse_size(f"{LONG}MB"),
        lambda: cron.check_cron(f"{LONG} * * * *"),
        lambda: schedule.zone_of(LONG),
        lambda: ids.parse_id(LONG),
        lambda: search.parse(LONG),
        lambda: search.parse("attempt:--5"),
        lambda: search.parse(f"attempt:{'9' * 500}"),
        lambda: search.parse("priority:<-"),
        lambda: parse_queues(f"default:{LONG}", random.Random(0)),
        lambda: parse_rules(f"depth={LONG}"),
    ],
)
def test_long_and_odd_numbers_are_refused_in_a_short_message(parse: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse()
    assert len(str(caught.value)) < 600, "the message repeats the whole input"


# -- patterns ----------------------------------------------------------------------------------------


def patterns() -> Iterator[tuple[str, str]]:
    """Every literal pattern of the code that reads input: its place and its text."""
    for folder in ("core", "engine", "web", "cli"):
        for file in sorted((SOURCES / folder).rglob("*.py")):
            text = file.read_text()
            if "re." not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id == "re"
                    and node.args
                ):
                    where = f"{file.relative_to(SOURCES)}:{node.lineno}"
                    yield where, str(ast.literal_eval(node.args[0]))


def has_nested_repeats(pattern: str) -> bool:
    """Whether an unbounded repeat stands inside another one, as in `(a+)*`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from re import _constants as sre  # type: ignore[attr-defined]  # the only parser of patterns
        from re import _parser as parser  # type: ignore[attr-defined]

    repeats = (sre.MAX_REPEAT, sre.MIN_REPEAT)

    def walk(tree: Any, is_inside: bool) -> bool:
        if isinstance(tree, tuple) and tree and tree[0] in repeats:
            is_unbounded = tree[1][1] == sre.MAXREPEAT
            if is_unbounded and is_inside:
                return True
            return walk(tree[1][2], is_inside or is_unbounded)
        if isinstance(tree, list | tuple | parser.SubPattern):
            return any(walk(one, is_inside) for one in tree)
        return False

    return walk(parser.parse(pattern), False)


def test_no_pattern_has_nested_repeats() -> None:
    found = list(patterns())
    assert len(found) > 10, "the patterns are written in another way now"
    for where, pattern in found:
        re.compile(pattern)
        assert not has_nested_repeats(pattern), f"{where}: {pattern}"


@pytest.mark.parametrize(
    "pattern, is_nested",
    [(r"(a+)*", True), (r"(?:\d+(?:\.\d+)*)", True), (r"(a{1,5})*", False), (r"(?:x|a+b)+", True)],
)
def test_nested_repeats_are_recognised(pattern: str, is_nested: bool) -> None:
    assert has_nested_repeats(pattern) is is_nested
