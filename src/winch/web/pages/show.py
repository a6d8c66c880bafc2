"""How things look in words and numbers: what the templates call."""

from __future__ import annotations

import json
import re
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from winch.core.job import attempt_words
from winch.engine.observe.queue_counts import counted
from winch.web.schemas.jobs import JobOut

MOST_SHOWN = 20_000
# The time zone of the page that is being made, by its name; a cookie keeps what the reader chose.
ZONE: ContextVar[str] = ContextVar("winch-zone", default="UTC")


def known_zone(name: str) -> str:
    """The name, if there is such a time zone here; else UTC."""
    if not name or len(name) > 64:
        return "UTC"
    try:
        return ZoneInfo(name).key
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return "UTC"


def zone() -> tzinfo:
    """The time zone of this page."""
    name = ZONE.get()
    return UTC if name == "UTC" else ZoneInfo(name)


def span(value: timedelta | float | None) -> str:
    """A length of time for people: 340 ms, 12 s, 3 m 20 s, 2 h 5 m, 4 d 15 h."""
    if value is None:
        return "–"
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 0.001:
        return f"{sign}{seconds * 1e6:.0f} µs" if seconds else "0 s"
    if seconds < 1:
        return f"{sign}{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{sign}{seconds:.1f} s"
    if seconds < 60:
        return f"{sign}{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{sign}{minutes} m {rest} s" if rest and minutes < 10 else f"{sign}{minutes} m"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{sign}{hours} h {minutes} m" if minutes and hours < 10 else f"{sign}{hours} h"
    days, hours = divmod(hours, 24)
    return f"{sign}{days} d {hours} h" if hours and days < 10 else f"{sign}{days} d"


def ago(moment: datetime | None, now: datetime | None = None) -> str:
    if moment is None:
        return "–"
    passed = (now or datetime.now(UTC)) - moment
    if abs(passed) < timedelta(seconds=1):
        return "now"
    return f"in {span(-passed)}" if passed < timedelta(0) else f"{span(passed)} ago"


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """`ago` for a list: one unit of what has passed, `18 m ago`."""
    text = ago(moment, now)
    return " ".join([*text.split(" ")[:2], "ago"]) if text.endswith(" ago") else text


def stamp(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone(zone()):%Y-%m-%d %H:%M:%S %Z}"


def clock(moment: datetime | None, form: str = "%H:%M:%S") -> str:
    """The time of day, in the page's zone."""
    return "" if moment is None else moment.astimezone(zone()).strftime(form)


def iso(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat()


def number(value: float | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, float) and value != int(value):
        return (f"{value:,.1f}" if value >= 10 else f"{value:,.2f}").rstrip("0").rstrip(".")
    return f"{int(value):,}"


def jobs(count: int) -> str:
    """A number of jobs in words: `1 job`, `2,400 jobs`."""
    return f"{count:,} job" if count == 1 else f"{count:,} jobs"


def capped(value: int, cap: int) -> str:
    return f"{value:,}+" if value >= cap else f"{value:,}"


def compact(value: Any, most: int = 160) -> str:
    """Arguments as `a=1 name="x"`, for a cell of a table."""
    if isinstance(value, dict):
        text = " ".join(f"{key}={json.dumps(item, ensure_ascii=False)}" for key, item in value.items())
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else text[: most - 1] + "…"


def pretty(value: Any) -> str:
    """Any value as JSON over several lines, cut where it gets too long for a page."""
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    if len(text) > MOST_SHOWN:
        return (
            f"{text[:MOST_SHOWN]}\n… cut here; {len(text):,} characters in all. The API has the whole."
        )
    return text


def cut(text: str | None, most: int = MOST_SHOWN) -> str:
    if not text:
        return ""
    return text if len(text) <= most else f"{text[:most]}\n… cut here; {len(text):,} characters in all."


def first_line(text: str | None, most: int = 200) -> str:
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= most else line[: most - 1] + "…"


def short_name(name: str) -> str:
    """The last part of a dotted name: `CardDeclined`."""
    return name.rpartition(".")[2]


def attempts(job: JobOut) -> str:
    return attempt_words(job.attempt, job.max_attempts, crashes=job.crashes, rescues=job.rescues)


def attempts_short(job: JobOut) -> str:
    """`3/8`, for a column; a job with crashes or rescues has them in words."""
    if job.crashes or job.rescues:
        return attempts(job)
    return f"{job.attempt}/{job.max_attempts}" if job.max_attempts else str(job.attempt)


def size(text: str | None) -> str:
    """A size with a space before its unit."""
    return re.sub(r"(?<=[0-9])(?=[A-Za-z])", " ", text or "")


def percent(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") + " %"


def share(value: float) -> str:
    """A share for a column: 0 %, 1.0 %, 5.2 %, 100 %. What is not nothing is never 0."""
    if 0 < value < 0.05:
        return "< 0.1 %"
    return f"{value:.1f} %" if 0 < value < 100 else f"{value:.0f} %"


def sentence(text: str) -> str:
    """The text with a capital letter at its beginning; the rest stays as it is."""
    return text[:1].upper() + text[1:]


FILTERS = {
    "sentence": sentence,
    "short_name": short_name,
    "attempts": attempts,
    "attempts_short": attempts_short,
    "clock": clock,
    "percent": percent,
    "share": share,
    "size": size,
    "span": span,
    "age": age,
    "ago": ago,
    "stamp": stamp,
    "iso": iso,
    "number": number,
    "capped": capped,
    "counted": counted,
    "compact": compact,
    "pretty": pretty,
    "cut": cut,
    "first_line": first_line,
}
