"""What people note about groups of dead jobs: an assignee, a text, a state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from winch.core.errors import ConfigError
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.core.values.redact import mask_text
from winch.engine.base.operation import Operation
from winch.engine.client.audit import actor, noted
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import Acted, DeadGroup, JobFilter, Page
from winch.storage.protocol import Driver

BOOK = "dead group"
MOST_MARKS = 1000
MOST_NOTE = 4000
MOST_NAME = 200
PAGE = 500

Mark = Literal["open", "ignored", "resolved"]
MARKS: tuple[Mark, ...] = ("open", "ignored", "resolved")


class GroupMark(msgspec.Struct, frozen=True, kw_only=True):
    """What people have noted about a group: its state, an assignee and a text. `by` and `at` are those
    of the last change.
    """

    state: Mark = "open"
    assignee: str | None = None
    note: str | None = None
    by: str = ""
    at: datetime | None = None

    def state_of(self, group: DeadGroup) -> str:
        """The state of the group now: one that was resolved is "back" when a job died since."""
        if self.state == "resolved" and self.at is not None and group.last_at > self.at:
            return "back"
        return self.state


NO_MARK = GroupMark()


def marks(driver: Driver) -> Operation[dict[str, GroupMark]]:
    """What is noted, by group."""
    lines = yield driver.kv_list(KvFilter(book=BOOK, limit=MOST_MARKS, is_newest_first=True))
    found = {}
    for line in lines:
        try:
            found[line.key] = msgspec.json.decode(line.body, type=GroupMark)
        except msgspec.DecodeError:
            continue  # of another release
    return found


def mark(driver: Driver, group: str, given: dict[str, Any]) -> Operation[GroupMark]:
    """Note something about a group. When two people do at once, the later one wins."""
    if not group.isalnum() or len(group) > MOST_NAME:
        raise ConfigError(f"a group is named by its fingerprint, got {group!r}")
    if not given:
        raise ConfigError("say what to note: state=, assignee= or note=")
    if given.get("state") not in (None, *MARKS):
        raise ConfigError(f"state must be one of {', '.join(MARKS)}, got {given['state']!r}")
    if len(given.get("note") or "") > MOST_NOTE or len(given.get("assignee") or "") > MOST_NAME:
        raise ConfigError(f"a note has up to {MOST_NOTE} characters, an assignee up to {MOST_NAME}")
    if given.get("note"):
        given = {**given, "note": mask_text(given["note"])}
    before = (yield from marks(driver)).get(group, NO_MARK)
    after = msgspec.structs.replace(
        before,
        **{**given, "state": given.get("state") or before.state},
        by=actor(),
        at=datetime.now(UTC),
    )
    body = msgspec.json.encode(after).decode()
    yield driver.kv_put([KvRecord(book=BOOK, key=group, body=body)])
    yield from noted(driver, "mark dead group", group, **given)
    return after


def discard(
    driver: Driver, which: JobFilter | Sequence[str], *, dry_run: bool
) -> Operation[tuple[int, int]]:
    """Delete dead jobs for good, in bounded batches; returns how many matched and how many are gone."""
    matched = gone = 0
    after: str | None = None
    start = 0
    while True:
        if isinstance(which, JobFilter):
            page: Page = yield driver.list_jobs(
                msgspec.structs.replace(which, states=(JobState.DEAD,), limit=PAGE, after=after)
            )
            ids, after = [job.id for job in page.jobs], page.next
        else:
            found: Sequence[JobRecord | None] = yield driver.get(which[start : start + PAGE])
            ids = [job.id for job in found if job is not None and job.state is JobState.DEAD]
            start += PAGE
            after = str(start) if start < len(which) else None
        matched += len(ids)
        if ids and not dry_run:
            answers: Sequence[Acted] = yield driver.delete(ids, by=actor())
            gone += sum(one.took for one in answers)
        if after is None:
            break
    if not dry_run:
        target = "jobs" if isinstance(which, JobFilter) else f"{len(which):,} jobs"
        named = (
            {"task": which.task, "queue": which.queue, "group": which.fingerprint}
            if isinstance(which, JobFilter)
            else {}
        )
        yield from noted(driver, "discard dead", target, **named, discarded=gone)
    return matched, gone
