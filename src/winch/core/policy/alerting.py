"""When to alert: the rules as values, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.core.values.bounds import check_length, parse_int
from winch.core.values.duration import format_duration, parse_duration

MAX_CHARS = 500


class AlertRules(msgspec.Struct, frozen=True, kw_only=True):
    """When to alert; None is never. `failures` is a share of attempts of one task, `dead` a number of
    jobs of one task, both in five minutes. `dead_letters` is how many dead jobs of one task are kept,
    `snapshot` the age of the oldest transaction that holds up vacuum."""

    depth: int | None = 10_000
    oldest: timedelta | None = timedelta(seconds=60)
    failures: float | None = 0.5
    dead: int | None = 10
    workers: timedelta | None = timedelta(seconds=60)
    schedules: timedelta | None = timedelta(seconds=60)
    dead_letters: int | None = 1000
    snapshot: timedelta | None = timedelta(hours=1)

    def __str__(self) -> str:
        return " ".join(
            f"{name}={_rule_text(value)}" for name, value in msgspec.structs.asdict(self).items()
        )

    @property
    def are_off(self) -> bool:
        return all(value is None for value in msgspec.structs.astuple(self))


def _rule_text(value: int | float | timedelta | None) -> str:
    if value is None:
        return "off"
    return format_duration(value).replace(" ", "") if isinstance(value, timedelta) else f"{value:g}"


OFF = AlertRules(**dict.fromkeys(AlertRules.__struct_fields__))


def parse_rules(value: object, name: str = "alerts") -> AlertRules:
    """`off`, or rules that differ from the defaults: `depth=50000 oldest=5m dead=off`, or a table."""
    if isinstance(value, AlertRules):
        return value
    if isinstance(value, str):
        check_length(value, MAX_CHARS, name)
        if value.strip() == "off":
            return OFF
        words = [word for word in value.replace(",", " ").split() if word]
        pairs = [word.partition("=") for word in words]
        if any(not equals for _, equals, _ in pairs):
            raise ConfigError(
                f"{name} must be off, or like depth=50000 oldest=5m dead=off, got {value!r}"
            )
        value = {key: text for key, _, text in pairs}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a text or a table, got {value!r}")
    known = AlertRules.__struct_fields__
    given: dict[str, int | float | timedelta | None] = {}
    for key, limit in value.items():
        if key not in known:
            raise ConfigError(f"{name} has no rule {key!r}{did_you_mean(str(key), known)}")
        given[key] = None if limit in ("off", False) else _limit(f"{name}.{key}", key, limit)
    return msgspec.convert(given, AlertRules)


def _limit(name: str, key: str, limit: object) -> int | float | timedelta:
    if key in ("oldest", "workers", "schedules", "snapshot"):
        return parse_duration(limit, name)  # type: ignore[arg-type]  # it refuses what it cannot read
    text = check_length(str(limit), MAX_CHARS, name)
    if key != "failures":
        return parse_int(text, name, least=1)
    try:
        share = float(text)
    except ValueError as error:
        raise ConfigError(f"{name} must be a number or off, got {limit!r}") from error
    if not 0 < share <= 1:
        raise ConfigError(f"{name} must be more than 0 and at most 1, got {limit!r}")
    return share
