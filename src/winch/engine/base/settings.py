"""Settings and where each value came from.

Precedence: command line, `WINCH_*` environment, code (`App(…)`), the file named by --config or
$WINCH_CONFIG, winch.toml, pyproject.toml [tool.winch], defaults: what stands in the call wins over a
file elsewhere. Unknown keys and unknown `WINCH_*` variables are errors.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.core.job import HISTORY_LIMIT, MAX_CRASHES, POISON_WINDOW, UNDO_LIVES, SuspectRule
from winch.core.policy.alerting import AlertRules, parse_rules
from winch.core.policy.queue_limits import parse_limits, parse_rates
from winch.core.policy.schedule import deadline_of
from winch.core.values.bounds import MAX_INT, parse_int
from winch.core.values.duration import parse_duration
from winch.core.values.ip_address import parse_networks
from winch.core.values.size import parse_size
from winch.engine.base.encryption import Keyring

EVENTS = ("off", "full")
# Crashes are counted in a job's history, which must hold those of a job that undoes its steps, too.
MOST_CRASHES = HISTORY_LIMIT // UNDO_LIVES
LONGEST_WINDOW = timedelta(days=3650)
# Variables that are no settings of an app: what commands, child processes, the tests, the benchmarks and
# the example worker in another language read.
_OTHER_VARIABLES = frozenset(
    {
        "WINCH_BURST",
        "WINCH_CELL_LINE",
        "WINCH_CHILD_LINK",
        "WINCH_CONFIG",
        "WINCH_FAST",
        "WINCH_FAULTS_AT_ONCE",
        "WINCH_HISTORY",
        "WINCH_LISTEN_URL",
        "WINCH_LOG_STYLE",
        "WINCH_METRICS_TOKEN",
        "WINCH_SERVER",
        "WINCH_TOKEN",
        "WINCH_UPDATE_GOLDEN",
    }
)
_OTHER_FAMILIES = ("WINCH_TEST_", "WINCH_BENCH_")
# Kubernetes gives every pod the addresses of the services beside it: those of one named `winch` or
# `winch-…` begin like ours.
_OF_A_SERVICE = re.compile(
    r"WINCH_(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT|"
    r"PORT_[0-9]{1,5}_(?:TCP|UDP|SCTP)(?:_PROTO|_PORT|_ADDR)?)"
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One app's settings; see docs/configuration.md for each."""

    url: str = "sqlite:///winch.db"
    schema: str | None = None
    app: str | None = None
    events: str = "off"
    lease: timedelta = timedelta(seconds=30)
    heartbeat: timedelta = timedelta(seconds=5)
    sweep: timedelta = timedelta(seconds=5)
    poll: timedelta = timedelta(seconds=1)
    grace: timedelta = timedelta(seconds=30)
    concurrency: int = 10
    processes: int = 1
    kill_after: timedelta = timedelta(seconds=10)
    crash_limit: int = MAX_CRASHES
    crash_window: timedelta = POISON_WINDOW
    misfire_deadline: timedelta | None = None
    queue_limits: Mapping[str, int] = {}
    queue_rates: Mapping[str, str] = {}
    max_jobs: int | None = None
    max_memory: int | None = None
    max_lifetime: timedelta | None = None
    keys: Keyring | None = None
    spool: str | None = None
    move_to: str | None = None
    alerts: AlertRules = AlertRules()
    alert_webhook: str | None = None
    alert_secret: str | None = None
    alert_networks: str | None = None
    trusted_proxies: str | None = None
    faktory_password: str | None = None

    def __post_init__(self) -> None:
        if self.lease < 3 * self.heartbeat:
            raise ConfigError(
                f"lease must be at least three heartbeats, got {self.lease.total_seconds():g}s and "
                f"{self.heartbeat.total_seconds():g}s"
            )
        for name in ("heartbeat", "sweep", "poll"):
            if getattr(self, name) < timedelta(milliseconds=10):
                raise ConfigError(f"{name} must be at least 10ms, got {getattr(self, name)}")
        for name in ("concurrency", "processes", "max_jobs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if not 1 <= self.crash_limit <= MOST_CRASHES:
            raise ConfigError(f"crash_limit must be from 1 to {MOST_CRASHES}, got {self.crash_limit}")
        if not timedelta(seconds=1) <= self.crash_window <= LONGEST_WINDOW:
            raise ConfigError(
                f"crash_window must be from 1s to {LONGEST_WINDOW.days}d, got {self.crash_window}"
            )
        if self.max_lifetime is not None and self.max_lifetime < timedelta(seconds=1):
            raise ConfigError(f"max_lifetime must be at least 1s, got {self.max_lifetime}")
        if self.events not in EVENTS:
            raise ConfigError(
                f"events must be one of {', '.join(EVENTS)}, got {self.events!r}"
                f"{did_you_mean(self.events, EVENTS)}"
            )

    @property
    def crash_rule(self) -> SuspectRule:
        """When a job that kills its process is dead."""
        return SuspectRule(self.crash_limit, self.crash_window)


class Loaded(msgspec.Struct, frozen=True):
    """The settings in force, and for each name the place its value came from."""

    settings: Settings
    origins: Mapping[str, str]


def load(
    *,
    code: Mapping[str, Any] | None = None,
    cli: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    config: str | None = None,
) -> Loaded:
    """Gather the settings from every place; None in `code` and `cli` means not given."""
    env = os.environ if env is None else env
    folder = Path.cwd() if folder is None else folder
    values: dict[str, Any] = {}
    origins = dict.fromkeys(Settings.__struct_fields__, "default")

    def put(found: Mapping[str, Any], origin: str) -> None:
        for name, value in found.items():
            if value is None:
                continue
            if name not in Settings.__struct_fields__:
                hint = did_you_mean(name, Settings.__struct_fields__)
                raise ConfigError(f"{origin}: no setting named {name!r}{hint}")
            values[name] = _parse(name, value, origin)
            origins[name] = origin

    _refuse_unknown(env)
    put(_table(folder / "pyproject.toml", ("tool", "winch")), "pyproject.toml")
    put(_table(folder / "winch.toml", ()), "winch.toml")
    named = config or env.get("WINCH_CONFIG")
    if named:
        if not Path(named).is_file():
            raise ConfigError(f"the configuration file {named!r} does not exist")
        put(_table(Path(named), ()), named)
    put(code or {}, "code")
    for name in Settings.__struct_fields__:
        found = _from_env(name, env)
        if found is not None:
            put({name: found[0]}, found[1])
    put(cli or {}, "command line")
    if str(values.get("url", "")).startswith("env:"):
        variable = values["url"].removeprefix("env:")
        if variable not in env:
            raise ConfigError(f"url is taken from ${variable}, which is not set")
        values["url"] = env[variable]
        origins["url"] += f" (${variable})"
    return Loaded(Settings(**values), origins)


def _refuse_unknown(env: Mapping[str, str]) -> None:
    """Raise for a `WINCH_*` variable that nothing reads: a typing error must not pass for a setting."""
    settings = {f"WINCH_{name.upper()}" for name in Settings.__struct_fields__}
    known = settings | {f"{name}_FILE" for name in settings} | _OTHER_VARIABLES
    for name in sorted(env):
        if not name.startswith("WINCH_") or name in known or name.startswith(_OTHER_FAMILIES):
            continue
        if len(name) > 256 or not _OF_A_SERVICE.fullmatch(name):
            # Without what all of them begin with, or any two would look alike.
            ends = [one.removeprefix("WINCH_") for one in known]
            hint = did_you_mean(name.removeprefix("WINCH_"), ends).replace("'", "'WINCH_", 1)
            raise ConfigError(
                f"the environment variable {name} is not a setting of Winch{hint}; "
                "unset it, or see docs/configuration.md for the list"
            )


def _from_env(name: str, env: Mapping[str, str]) -> tuple[str, str] | None:
    key = f"WINCH_{name.upper()}"
    if key in env:
        return env[key], f"${key}"
    if f"{key}_FILE" in env:  # secrets mounted as files
        path = Path(env[f"{key}_FILE"])
        try:
            return path.read_text().strip(), f"${key}_FILE"
        except OSError as error:
            raise ConfigError(f"${key}_FILE names {path}, which cannot be read: {error}") from error
    return None


def _table(path: Path, keys: tuple[str, ...]) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        found: Any = _parsed(path.read_text())
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    for key in keys:
        found = found.get(key, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: [{'.'.join(keys)}] must be a table")
    return deepcopy(found)  # the next app gets values of its own


@lru_cache(maxsize=4)
def _parsed(text: str) -> dict[str, Any]:
    """Parse a file once: in a test suite hundreds of apps read the same one, at 4 ms each."""
    return tomllib.loads(text)


def _parse(name: str, value: Any, origin: str) -> Any:
    parse = _PARSERS.get(name)
    try:
        return value if parse is None else parse(value, name)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from error


def _number(value: Any, name: str) -> int:
    if isinstance(value, bool):
        raise ConfigError(f"{name} must be a whole number, got {value!r}")
    return parse_int(str(value), name, least=-MAX_INT)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be a non-empty text, got {value!r}")
    return value


def _networks(value: Any, name: str) -> str:
    """Kept as text, which is what a person reads back; checked here."""
    text = ",".join(value) if isinstance(value, list | tuple) else _text(value, name)
    parse_networks(text, name)
    return text


def _keys(value: Any, name: str) -> Keyring:
    if isinstance(value, Keyring):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a Keyring or a text such as k2:base64,k1:base64")
    return Keyring.parse(value)


_PARSERS: dict[str, Callable[[Any, str], Any]] = {
    "url": _text,
    "schema": _text,
    "app": _text,
    "events": _text,
    "lease": parse_duration,
    "heartbeat": parse_duration,
    "sweep": parse_duration,
    "poll": parse_duration,
    "grace": parse_duration,
    "concurrency": _number,
    "processes": _number,
    "kill_after": parse_duration,
    "crash_limit": _number,
    "crash_window": parse_duration,
    "misfire_deadline": deadline_of,
    "queue_limits": parse_limits,
    "queue_rates": parse_rates,
    "max_jobs": _number,
    "max_memory": parse_size,
    "max_lifetime": parse_duration,
    "keys": _keys,
    "spool": _text,
    "move_to": _text,
    "alerts": parse_rules,
    "alert_webhook": _text,
    "alert_secret": _text,
    "alert_networks": _text,
    "trusted_proxies": _networks,
    "faktory_password": _text,
}
