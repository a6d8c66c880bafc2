"""Values of a scenario: variables that are filled in, and answers that are held against expectations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_VARIABLE = re.compile(r"\$\{([^}]+)\}")


class ScenarioError(Exception):
    """A scenario that cannot be played: a mistake in its file, not in an SDK."""


def filled(value: Any, variables: Mapping[str, Any]) -> Any:
    """The value with `${name}` and `${name.field}` replaced. A text that is one variable becomes its
    value, of whatever type; `{"$repeat": ["x", 1000]}` becomes a long text."""
    if isinstance(value, str):
        whole = _VARIABLE.fullmatch(value)
        if whole is not None:
            return _look_up(whole[1], variables)
        return _VARIABLE.sub(lambda found: str(_look_up(found[1], variables)), value)
    if isinstance(value, list):
        return [filled(one, variables) for one in value]
    if isinstance(value, dict):
        if list(value) == ["$repeat"]:
            text, times = value["$repeat"]
            return str(text) * int(times)
        return {filled(name, variables): filled(one, variables) for name, one in value.items()}
    return value


def _look_up(path: str, variables: Mapping[str, Any]) -> Any:
    found: Any = variables
    for name in path.split("."):
        try:
            found = found[int(name)] if isinstance(found, list) else found[name]
        except (KeyError, IndexError, ValueError, TypeError):
            known = ", ".join(sorted(variables))
            raise ScenarioError(f"no variable ${{{path}}}; there are: {known}") from None
    return found


def misfit(wanted: Any, found: Any, at: str = "") -> str | None:
    """Why `found` is not what is wanted, or None. Of an object only the named fields count."""
    if isinstance(wanted, dict):
        if wanted and all(name.startswith("$") for name in wanted):
            reasons = (_misfit_rule(rule, given, found, at) for rule, given in wanted.items())
            return next((reason for reason in reasons if reason is not None), None)
        if not isinstance(found, dict):
            return f"{at or 'it'} is {_short(found)}, no object"
        for name, one in wanted.items():
            if name not in found:
                return f"{at}.{name} is missing in {_short(found)}"
            if (reason := misfit(one, found[name], f"{at}.{name}")) is not None:
                return reason
        return None
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return f"{at or 'it'} is {_short(found)}, wanted {_short(wanted)}"
        reasons = (
            misfit(one, got, f"{at}[{n}]")
            for n, (one, got) in enumerate(zip(wanted, found, strict=True))
        )
        return next((reason for reason in reasons if reason is not None), None)
    is_same = wanted == found and isinstance(wanted, bool) == isinstance(found, bool)
    return None if is_same else f"{at or 'it'} is {_short(found)}, wanted {_short(wanted)}"


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "object": (dict,),
    "array": (list,),
    "boolean": (bool,),
    "null": (type(None),),
}


def _misfit_rule(rule: str, given: Any, found: Any, at: str) -> str | None:
    match rule:
        case "$any":
            fits = True
        case "$type":
            fits = isinstance(found, _TYPES[given])
        case "$match":
            fits = isinstance(found, str) and re.search(given, found) is not None
        case "$not_match":
            fits = not isinstance(found, str) or re.search(given, found) is None
        case "$in":
            fits = any(misfit(one, found) is None for one in given)
        case "$not":
            fits = misfit(given, found) is not None
        case "$has":  # a list with an element for each of these
            fits = isinstance(found, list) and all(
                any(misfit(one, got) is None for got in found) for one in given
            )
        case "$length":
            fits = isinstance(found, list | str | dict) and misfit(given, len(found)) is None
        case "$least":
            fits = isinstance(found, int | float) and found >= given
        case "$most":
            fits = isinstance(found, int | float) and found <= given
        case "$sorted":  # the same elements in any order
            fits = isinstance(found, list) and sorted(map(str, found)) == sorted(map(str, given))
        case _:
            raise ScenarioError(f"no rule {rule}")
    return None if fits else f"{at or 'it'} is {_short(found)}, wanted {rule} {_short(given)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 400 else f"{text[:400]}…"


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """The seconds of a duration like 250ms or 5s."""
    found = re.fullmatch(r"(\d+)(ms|s|m|h)", text)
    if found is None:
        raise ScenarioError(f"no duration: {text!r}")
    return int(found[1]) * _UNITS[found[2]]
