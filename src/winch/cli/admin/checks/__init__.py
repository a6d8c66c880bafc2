"""What `winch doctor` looks at. A check gives findings; each finding has an advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from winch.app import App


class Level(StrEnum):
    """PROBLEM: jobs do not run, or may be lost. WARNING: they may, one day. NOTE: good to know."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    subject: str
    text: str
    advice: str = ""


Findings = Iterator[Finding]


def obstacles(app: App) -> Findings:
    """What keeps Winch from opening the store at all."""
    if app.driver.name == "sqlite":
        from winch.cli.admin.checks.sqlite import check_sharing
        from winch.drivers.sqlite.address import parse_url

        if not parse_url(app.settings.url).is_shared:
            yield from check_sharing(app)


def checks_for(app: App) -> list[Callable[[App], Findings]]:
    """The checks that fit the app's store, the cheapest first."""
    from winch.cli.admin.checks.move import check_move
    from winch.cli.admin.checks.store import check_jobs, check_schedules, check_workers

    found: list[Callable[[App], Findings]] = []
    if app.driver.name == "sqlite":
        from winch.cli.admin.checks.sqlite import check_sqlite

        found.append(check_sqlite)
    elif app.driver.name == "postgres":
        from winch.cli.admin.checks.postgres import check_postgres

        found.append(check_postgres)
    elif app.driver.name.startswith("redis"):
        from winch.cli.admin.checks.redis import check_redis

        found.append(check_redis)
    return [*found, check_move, check_workers, check_jobs, check_schedules]
