"""Dead letters: what broke, whether it goes on, what the jobs have in common; replay and discard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import msgspec
from starlette.responses import Response

from winch.areas.dead_groups import MARKS, NO_MARK
from winch.areas.replay import merged
from winch.core.errors import ConfigError, WinchError
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.core.values import codec
from winch.core.values.bounds import parse_int
from winch.core.values.duration import parse_duration, parse_rate
from winch.core.values.redact import MASK, mask, shown
from winch.storage.params import DeadGroup, JobFilter
from winch.web import search
from winch.web.access import EVERY_NARROWING
from winch.web.api.dead import mark_group, start_discard
from winch.web.api.queues import marks_for, start_replay, visible_groups
from winch.web.draw.diff import DiffLine, changes
from winch.web.draw.frames import blocks
from winch.web.draw.sparks import trend
from winch.web.operations import WAIT
from winch.web.pages.base import go, link, one, page, part
from winch.web.pages.show import short_name, zone
from winch.web.pages.sure import ask, is_sure
from winch.web.problems import Problem
from winch.web.routes import WebCall, WebRoute
from winch.web.schemas.convert import group_out, job_detail, job_out
from winch.web.schemas.operate import DiscardBody
from winch.web.schemas.queues import ReplayBody
from winch.web.site import CACHE_SECONDS

HOURS = 24
MOST_GROUPS = 200
# What a group has in common is read from so many of its newest jobs.
SAMPLED = 200
MOST_VALUES = 3
# How long a preview counts before it is shown without an end.
PREVIEW_WAIT = 3.0
ACTIONS = ("open", "ignored", "resolved", "note", "preview", "one", "replay", "discard")
TABS = {"open": ("open", "back"), "ignored": ("ignored",), "resolved": ("resolved",)}


class DeadQuery(msgspec.Struct, frozen=True, kw_only=True):
    task: str | None = None
    queue: str | None = None
    show: str = "open"
    did: str = ""


async def list_page(call: WebCall) -> Response:
    query: DeadQuery = call.query
    groups = await visible_groups(call, query.task or None, query.queue or None, MOST_GROUPS)
    marks = await marks_for(call)
    trends = await trends_of(call, groups)
    rows = [
        {
            "group": (out := group_out(group, marks.get(group.fingerprint, NO_MARK))),
            "trend": _trend(trends, group),
            "is_new": datetime.now(UTC) - group.first_at < timedelta(hours=1),
            "tab": next(tab for tab, states in TABS.items() if out.state in states),
        }
        for group in groups
    ]
    counts = Counter(row["tab"] for row in rows)
    chosen = query.show if query.show in TABS else "open"
    return await page(
        call,
        "dead.html",
        title="Dead letters",
        rows=[row for row in rows if row["tab"] == chosen],
        counts=counts,
        tabs=tuple(TABS),
        chosen=chosen,
        total=sum(group.count for group in groups),
        groups=len(groups),
        task=query.task or "",
        queue=query.queue or "",
        sentence=_sentence(groups, trends),
    )


async def trends_of(call: WebCall, groups: Sequence[DeadGroup]) -> Mapping[str, Sequence[int]]:
    """Deaths by the hour. They count all jobs of a group, so a narrowed caller gets none."""
    if call.access.is_narrow or not groups:
        return {}
    names = [group.fingerprint for group in groups]
    found: Mapping[str, Sequence[int]] = await call.site.kept(
        f"trends {' '.join(names)}",
        lambda: call.site.app.dead.atrend(names, hours=HOURS),
        CACHE_SECONDS,
    )
    return found


def _trend(trends: Mapping[str, Sequence[int]], group: DeadGroup) -> Any:
    if group.fingerprint not in trends:
        return ""
    values = trends[group.fingerprint]
    return trend(values, f"{sum(values):,} died in {HOURS} hours, {values[-1]:,} in this one")


def _sentence(groups: Sequence[DeadGroup], trends: Mapping[str, Sequence[int]]) -> str:
    if not groups:
        return ""
    total = sum(group.count for group in groups)
    text = f"{total:,} jobs in {len(groups):,} {'group' if len(groups) == 1 else 'groups'}"
    lately = [(sum(trends[g.fingerprint][-2:]), g) for g in groups if g.fingerprint in trends]
    number, worst = max(lately, key=lambda pair: pair[0], default=(0, None))
    if worst is None:
        return text
    if not number:
        return f"{text}; none died in the last two hours"
    name = short_name(worst.error_name) or "the error"
    return f"{text}; {name} in {worst.task} goes on, {number:,} in two hours"


async def group_page(call: WebCall, preview: dict[str, Any] | None = None, error: str = "") -> Response:
    fingerprint = call.path("group")
    wanted = search.Search(JobFilter(states=(JobState.DEAD,), fingerprint=fingerprint))
    found = await call.site.search(call.access, wanted, limit=SAMPLED)
    if not found.jobs:
        raise Problem("not-found", "no dead job is in this group any more")
    sample = call.site.client.revealed(found.jobs[0])
    groups = await visible_groups(call, sample.task, None, 1000)
    group = next((g for g in groups if g.fingerprint == fingerprint), None)
    if group is None:
        raise Problem("not-found", "no dead job is in this group any more")
    mark = (await marks_for(call)).get(fingerprint, NO_MARK)
    values = (await trends_of(call, [group])).get(fingerprint, ())
    shown_group = group_out(group, mark)
    return await page(
        call,
        "group.html",
        200 if not error else 422,
        title=f"{short_name(shown_group.error.name or 'Dead')} in {group.task}",
        group=shown_group,
        mark=mark,
        marks=MARKS,
        trend=trend(values, f"{sum(values):,} died in {HOURS} hours") if values else "",
        lately=sum(values[-2:]) if values else 0,
        sample=(detail := job_detail(sample)),
        blocks=[] if detail.error is None else blocks(detail.error.traceback or detail.error.message),
        jobs=[job_out(job) for job in found.jobs[:15]],
        has_more=len(found.jobs) > 15,
        common=common([call.site.client.revealed(job) for job in found.jobs], await _workers(call)),
        sampled=min(len(found.jobs), SAMPLED),
        queues=sorted(
            {queue.name for queue in await call.site.queues() if call.access.serves(queue.name)}
        ),
        is_known=sample.task in call.site.app.tasks.names,
        form={name: one(call.body, name) or "" for name in FIELDS} if call.body else EMPTY_FORM,
        preview=preview,
        error=error,
    )


FIELDS = ("rate", "to_queue", "attempts", "patch", "since")
EMPTY_FORM = {"rate": "50/s", "to_queue": "", "attempts": "", "patch": "", "since": ""}


async def _workers(call: WebCall) -> dict[str, str]:
    driver = call.site.driver
    return {one.id: one.worker for one in await driver.arun(driver.sessions(is_ended_too=True))}


def common(
    jobs: Sequence[JobRecord], workers: Mapping[str, str]
) -> list[tuple[str, list[tuple[str, int]]]]:
    """What these jobs have in common: tenants, workers, queues, and arguments with few values."""
    counts: dict[str, Counter[str]] = {"Queue": Counter(), "Tenant": Counter(), "Worker": Counter()}
    args: dict[str, Counter[str]] = {}
    for job in jobs:
        counts["Queue"][job.queue] += 1
        if job.tenant is not None:
            counts["Tenant"][job.tenant] += 1
        session = next((entry.session for entry in reversed(job.history) if entry.session), job.session)
        if session is not None:
            counts["Worker"][workers.get(session, "ended")] += 1
        given = shown(job.args)
        for name, value in given.items() if isinstance(given, dict) else ():
            is_plain = isinstance(value, str | int | bool | float) or value is None
            if is_plain and value != MASK:
                args.setdefault(name, Counter())[str(value)[:40]] += 1
    few = {
        name: values
        for name, values in args.items()
        if len(jobs) > 1 and len(values) <= max(MOST_VALUES, len(jobs) // 5)
    }
    found = []
    for name, values in {**few, **counts}.items():
        if not values:
            continue
        rows = values.most_common(MOST_VALUES)
        rest = len(values) - len(rows)
        if rest > 0:
            rows[-1:] = [(f"{rest + 1} others", sum(values.values()) - sum(n for _, n in rows[:-1]))]
        found.append((name, rows))
    return found[:6]


async def act(call: WebCall) -> Response:
    """What can be done about a group: note something, replay it, discard it."""
    fingerprint = call.path("group")
    action = one(call.body, "action") or ""
    where = f"/dead/{part(fingerprint)}"
    if action in ("open", "ignored", "resolved"):
        await mark_group(call, fingerprint, {"state": action})
        return go(call, where, did=f"group-{action}")
    if action == "note":
        note = {name: one(call.body, name) for name in ("assignee", "note") if name in call.body}
        await mark_group(call, fingerprint, note)
        return go(call, where, did="group-noted")
    if action == "discard":
        return await _discard(call, fingerprint)
    if action in ("preview", "one", "replay"):
        try:
            return await _replay(call, fingerprint, action)
        except (WinchError, Problem) as error:
            call.is_preview = True
            return await group_page(call, error=getattr(error, "detail", str(error)))
    raise Problem(
        "invalid", "action must be one of open, ignored, resolved, note, preview, one, replay, discard"
    )


async def _replay(call: WebCall, fingerprint: str, action: str) -> Response:
    form = call.body
    patch = _patch(one(form, "patch"))
    since, until = died(one(form, "since"))
    attempts = one(form, "attempts")
    body = ReplayBody(
        group=fingerprint,
        since=since,
        until=until,
        rate=one(form, "rate"),
        patch=patch,
        attempts=None if attempts is None else parse_int(attempts, "attempts", least=1, most=1000),
        to_queue=one(form, "to_queue"),
        limit=1 if action == "one" else None,
        dry_run=action == "preview",
    )
    done = await start_replay(call, body, wait=PREVIEW_WAIT if action == "preview" else WAIT)
    if action != "preview":
        return go(call, f"/operations/{part(done.id)}")
    if done.state == "failed":
        raise Problem("invalid", done.note or "the jobs cannot be replayed like this")
    call.is_preview = True
    rate = one(form, "rate")
    pace = _per_second(rate)
    takes = (done.matched - done.refused) / pace if pace else None
    return await group_page(
        call, {"done": done, "takes": takes, "diff": await _diff(call, fingerprint, patch, since, until)}
    )


def died(text: str | None) -> tuple[datetime | None, datetime | None]:
    """When the jobs died that are meant: within a length of time, today, yesterday or on a day, as days
    are in the zone of the page."""
    if text is None:
        return None, None
    midnight = datetime.now(zone()).replace(hour=0, minute=0, second=0, microsecond=0)
    if text == "today":
        return midnight, None
    if text == "yesterday":
        return _midnight(midnight.date() - timedelta(days=1)), midnight
    try:
        day = date.fromisoformat(text)
    except ValueError:
        pass
    else:
        return _midnight(day), _midnight(day + timedelta(days=1))
    try:
        return datetime.now(UTC) - parse_duration(text, "died"), None
    except ConfigError:
        raise ConfigError(
            "died must be today, yesterday, a day like 2026-03-01 or a length of time like 24h, "
            f"got {text!r}"
        ) from None


def is_between(moment: datetime | None, since: datetime | None, until: datetime | None) -> bool:
    if moment is None:
        return False
    return (since is None or moment >= since) and (until is None or moment < until)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), zone())


def _per_second(rate: str | None) -> float | None:
    return None if rate is None else parse_rate(rate, "rate")


def _patch(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        patch = codec.loads_strict(text, what="the changes")
    except WinchError as error:
        raise Problem("invalid", str(error)) from error
    if not isinstance(patch, dict):
        raise Problem("invalid", 'the changes must be a JSON object, like {"gateway": "adyen"}')
    return patch


async def _diff(
    call: WebCall,
    fingerprint: str,
    patch: dict[str, Any] | None,
    since: datetime | None,
    until: datetime | None,
) -> Sequence[DiffLine]:
    """What the patch changes in the newest job that it is for, line by line."""
    if patch is None:
        return []
    wanted = search.Search(JobFilter(states=(JobState.DEAD,), fingerprint=fingerprint))
    found = await call.site.search(call.access, wanted, limit=SAMPLED)
    sample = next((job for job in found.jobs if is_between(job.finished_at, since, until)), None)
    if sample is None:
        return []
    before = shown(call.site.client.revealed(sample).args)
    return changes(before, merged(before, mask(patch)))


async def _discard(call: WebCall, fingerprint: str) -> Response:
    groups = await visible_groups(call, None, None, 1000)
    group = next((g for g in groups if g.fingerprint == fingerprint), None)
    if group is None:
        raise Problem("not-found", "no dead job is in this group any more")
    name = group.task
    if not is_sure(call, count=group.count, name=name):
        return await ask(
            call,
            title=f"Discard {group.count:,} dead {'job' if group.count == 1 else 'jobs'}?",
            text=f"{group.error_name or 'Dead jobs'} in {group.task}. The jobs are deleted with their "
            "arguments, errors and logs, and cannot be replayed any more. The audit keeps a line.",
            verb=f"Discard {group.count:,} {'job' if group.count == 1 else 'jobs'}",
            back=link(call.request, f"/dead/{part(fingerprint)}"),
            count=group.count,
            name=name,
        )
    done = await start_discard(call, DiscardBody(group=fingerprint))
    return go(call, f"/operations/{part(done.id)}")


async def replay(call: WebCall) -> Response:
    """Replay a group or one job: a dry run first, unless the box is ticked."""
    form = call.body
    text = one(form, "args")
    args = None
    if text is not None:
        try:
            args = codec.loads_strict(text, what="the new arguments")
        except WinchError as error:
            raise Problem("invalid", str(error)) from error
        if not isinstance(args, dict):
            raise Problem("invalid", "the new arguments must be a JSON object")
    attempts = one(form, "attempts")
    job = one(form, "id")
    body = ReplayBody(
        ids=None if job is None else [job],
        group=None if job is not None else one(form, "group"),
        rate=one(form, "rate"),
        args=args,
        attempts=None if attempts is None else parse_int(attempts, "attempts", least=1, most=1000),
        to_queue=one(form, "to_queue"),
        dry_run=one(form, "dry") == "yes",
    )
    done = await start_replay(call, body)
    return go(call, f"/operations/{part(done.id)}")


ROUTES: tuple[WebRoute, ...] = (
    WebRoute("GET", "/dead", "read", list_page, "Dead letters", query=DeadQuery, is_page=True,
             applies=("queue", "task")),
    WebRoute("POST", "/dead", "operate", replay, "Replay", audit="replay dead", is_page=True,
             applies=EVERY_NARROWING),
    WebRoute("GET", "/dead/{group}", "read", group_page, "One group of dead jobs", is_page=True,
             applies=("queue", "task")),
    WebRoute("POST", "/dead/{group}", "operate", act, "Act on a group of dead jobs",
             audit="dead group", is_page=True),
)  # fmt: skip
