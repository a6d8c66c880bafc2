"""Two numbers that grow silently: the dead jobs that are kept, and the age of the oldest snapshot."""

from __future__ import annotations

from datetime import timedelta

from winch.engine.base.operation import Operation
from winch.storage.params import DeadGroup, GroupFilter
from winch.storage.protocol import Driver, SnapshotStore

# Groups are read largest first, so what is left out is little.
MOST_GROUPS = 200


def dead_letters(driver: Driver) -> Operation[dict[str, int]]:
    """How many dead jobs of each task the store keeps, of the largest groups."""
    groups: list[DeadGroup] = yield driver.groups(GroupFilter(limit=MOST_GROUPS))
    found: dict[str, int] = {}
    for group in groups:
        found[group.task] = found.get(group.task, 0) + group.count
    return found


def oldest_snapshot(driver: Driver) -> Operation[timedelta | None]:
    """The age of the oldest transaction that holds up vacuum; None where the store has no such thing."""
    if not isinstance(driver, SnapshotStore):
        return None
    age: timedelta = yield driver.oldest_snapshot()
    return age
