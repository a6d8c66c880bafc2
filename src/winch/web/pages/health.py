"""The health of a store in one line: what is wrong now, why, and what to do about each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from urllib.parse import quote

from winch.core.lifecycle import JobState
from winch.core.policy.alerting import AlertRules
from winch.core.policy.queue_settings import QueueSettings
from winch.core.values.size import format_size
from winch.engine.observe.alerts import KeptAlert
from winch.engine.observe.queue_counts import counted
from winch.engine.observe.queue_samples import Sample
from winch.engine.observe.throughput import Series, TaskRate, percentile
from winch.engine.observe.usage import ProcessUsage
from winch.storage.params import DeadGroup, QueueInfo, SessionInfo
from winch.web.draw.pieces import Health, HealthFinding
from winch.web.pages.figures import GROWING, RECENT, Wanted, arriving, recent_minutes
from winch.web.pages.show import clock, first_line, jobs, sentence, short_name, size, span

MOST = 3
# Without rules of its own, a job that waits longer than this is late.
LATE = timedelta(seconds=60)
LATELY = timedelta(hours=1)
LEAST_ATTEMPTS = 20
FAILING = 0.1
# When an attempt is slow, in times of what it took before the last RECENT minutes.
SLOWER = 1.5
Link = Callable[..., str]


class Reason(NamedTuple):
    """Why a queue is behind, and the remedy with its address."""

    text: str
    remedy: str
    href: str


def health_of(
    *,
    queues: Sequence[QueueInfo],
    sessions: Sequence[SessionInfo],
    groups: Sequence[DeadGroup],
    recent: Series,
    alerts: Sequence[KeptAlert],
    rules: AlertRules,
    now: datetime,
    link: Link,
    usage: Mapping[str, ProcessUsage] | None = None,
    settings: Mapping[str, QueueSettings] | None = None,
    before: Sample | None = None,
    command: str = "winch",
    shows_all: bool = False,
) -> Health:
    """What a reader has to know first; the worst of it comes first."""
    aims = {one.name: objective((settings or {}).get(one.name), rules) for one in queues}
    found = [
        *_of_queues(queues, sessions, recent, before, now, aims, link, command),
        *_of_groups(groups, now, link),
        *_of_workers(sessions, now, link),
        *_of_memory(sessions, usage or {}, link),
        *_of_tasks(recent, {group.task for group in groups if now - group.last_at < LATELY}, link),
    ]
    found += _of_alerts(alerts, found, link)
    found = _varied(found)
    behind = sum(1 for one in found if one.icon in ("clock", "workers", "paused") and one.weight >= 60)
    note = _counted(max(len(queues) - behind, 0), len(queues))
    if not found:
        return Health("All is well", note, "good")
    number = len(found)
    verdict = "1 problem" if number == 1 else f"{number} problems"
    shown = found if shows_all else found[:MOST]
    look = "wrong" if any(one.look == "dead" for one in shown) else "warning"
    more = number - len(shown)
    return Health(verdict, note, look, shown, more, link("/", findings="all") if more else "")


def _varied(found: list[HealthFinding]) -> list[HealthFinding]:
    """Worst first, but the second of a kind counts for less: three findings should be three problems."""
    found.sort(key=lambda one: -one.weight)
    seen: Counter[str] = Counter()
    ranked = []
    for one in found:
        ranked.append((one.weight - 30 * seen[one.icon], one))
        seen[one.icon] += 1
    return [one for _, one in sorted(ranked, key=lambda pair: -pair[0])]


def _counted(on_time: int, number: int) -> str:
    if not number:
        return "no queue yet"
    if on_time == number:
        return "the queue is on time" if number == 1 else f"all {number} queues are on time"
    return f"{on_time} of {number} queues on time"


def _jobs(queue: QueueInfo) -> str:
    number = counted(queue, "ready")
    return "1 job waits" if number == "1" else f"{number} jobs wait"


def _of_queues(
    queues: Iterable[QueueInfo],
    sessions: Sequence[SessionInfo],
    recent: Series,
    before: Sample | None,
    now: datetime,
    aims: Mapping[str, timedelta],
    link: Link,
    command: str,
) -> Iterable[HealthFinding]:
    for queue in queues:
        ready, late = queue.counts.get(JobState.READY, 0), aims[queue.name]
        oldest = queue.oldest_ready_at
        waits = timedelta(0) if oldest is None else now - oldest
        where = link(f"/queues/{quote(queue.name, safe='')}")
        if not ready:
            continue
        if queue.paused_at is not None:
            reason = f"since {clock(queue.paused_at, '%H:%M')}"
            if queue.pause_reason:
                reason = f"{first_line(queue.pause_reason, 80)}, {reason}"
            what = f"{queue.name} is paused: {_jobs(queue)}"
            yield HealthFinding(what, reason, "Resume it", where, 60, "paused", "paused")
        elif not queue.sessions:
            what = f"No worker serves {queue.name}: {_jobs(queue)}"
            why = f"start one with {command} worker -Q {queue.name}"
            if waits > late:
                why = f"the oldest for {span(waits)}; {why}"
            yield HealthFinding(what, why, "See the queue", where, 85, "workers", "blocked")
        else:
            # Jobs that have started lately waited so long; the oldest that has not may wait longer.
            usual = percentile(recent.total(of_queue(queue.name)).wait, 0.95)
            worst = max(waits, timedelta(seconds=usual or 0.0))
            if worst > late:
                what = f"{queue.name} is late: {span(worst)}, objective {span(late)}"
                first, *rest = reasons_of(
                    queue, sessions, recent.merged(of_queue(queue.name)), link, before
                )
                why = "; ".join([first.text, *(one.text for one in rest[:1])])
                weight = 80 + min(int(worst / late), 4)
                yield HealthFinding(what, why, first.remedy, first.href, weight, "clock", "retrying")


def of_queue(wanted: str) -> Wanted:
    """Counts the rates of this queue alone."""
    return lambda queue, _: queue == wanted


def objective(settings: QueueSettings | None, rules: AlertRules) -> timedelta:
    """How long a job of a queue may wait before the queue is late: the age that its settings allow,
    or the one of the alerts."""
    return (settings and settings.max_age) or rules.oldest or LATE


def reasons_of(
    queue: QueueInfo,
    sessions: Sequence[SessionInfo],
    merged: Sequence[TaskRate],
    link: Link,
    before: Sample | None = None,
) -> list[Reason]:
    """Why a served queue is behind, as far as the counts and rates show it, and what to do about each.
    `merged` has the rates of the queue by the minute."""
    serving = [one for one in sessions if queue.name in one.queues]
    slots, busy = sum(one.slots for one in serving), sum(one.running for one in serving)
    blocked = queue.counts.get(JobState.BLOCKED, 0)
    ready = queue.counts.get(JobState.READY, 0)
    ready_words = f"{jobs(ready)} {'is' if ready == 1 else 'are'} ready"
    found = []
    if slots and busy >= slots:
        text = f"all {slots:,} slots of its workers are busy; {ready_words}"
        found.append(Reason(text, "Add workers", link("/workers", queue=queue.name)))
    if blocked:
        found.append(
            Reason(f"{blocked:,} of its jobs wait at a limit", "See the limits", link("/limits"))
        )
    found += _by_rates(queue, merged, before, link)
    if not found:
        free = f"{slots - busy:,} of {slots:,} slots are free" if slots else "its workers take no jobs"
        where = link(f"/queues/{quote(queue.name, safe='')}")
        found.append(Reason(f"{ready_words}; {free}", "See the queue", where))
    return found


def _by_rates(
    queue: QueueInfo, merged: Sequence[TaskRate], before: Sample | None, link: Link
) -> Iterable[Reason]:
    name, now, earlier = queue.name, _sum(merged[-RECENT:]), _sum(merged[:-RECENT])
    if now.ended < LEAST_ATTEMPTS:
        return
    took = now.run_seconds / now.ended
    usual = earlier.run_seconds / earlier.ended if earlier.ended >= LEAST_ATTEMPTS else took
    if took > SLOWER * usual:
        yield Reason(
            f"an attempt takes {span(took)}, {span(usual)} before",
            "See what runs",
            link("/jobs", q=f"queue:{name} state:running"),
        )
    share = now.broken / now.ended
    if share >= FAILING:
        yield Reason(
            f"{100 * share:.0f} % of its attempts fail, and are tried again",
            "See them",
            link("/jobs", q=f"queue:{name} state:retrying"),
        )
    comes, ended = arriving(now, queue, before), now.ended / recent_minutes()
    if comes > GROWING * ended:
        yield Reason(
            f"{comes:,.0f} jobs come in a minute, {ended:,.0f} attempts end",
            "Add workers",
            link("/workers", queue=name),
        )


def _sum(rates: Iterable[TaskRate]) -> TaskRate:
    total = TaskRate()
    for rate in rates:
        total.add(rate)
    return total


def _of_groups(groups: Iterable[DeadGroup], now: datetime, link: Link) -> Iterable[HealthFinding]:
    for group in groups:
        if now - group.last_at > LATELY:
            continue
        number = jobs(group.count)
        what = f"{number} of {group.task} died since {clock(group.first_at, '%H:%M')}"
        if now - group.first_at > timedelta(hours=20):
            what = f"{number} of {group.task} are dead, the last since {clock(group.last_at, '%H:%M')}"
        why = (
            f"{short_name(group.error_name)}: {first_line(group.message, 100)}"
            if group.error_name
            else ""
        )
        weight = 90 + min(group.count, 900) // 100
        yield HealthFinding(
            what,
            why,
            "Review the group",
            link(f"/dead/{group.fingerprint}"),
            weight,
            "dead-state",
            "dead",
        )


def _of_workers(sessions: Sequence[SessionInfo], now: datetime, link: Link) -> Iterable[HealthFinding]:
    for one in sessions:
        if one.lease_until < now:
            what = f"Worker {one.worker} is lost: no sign of it for {span(now - one.lease_until)}"
            held = "its job is" if one.running == 1 else f"its {one.running:,} jobs are"
            yield HealthFinding(what, f"{held} taken back and run elsewhere", "See the worker",
                          link("/workers"), 75, "lost", "lost")  # fmt: skip
    releases = sorted({one.release for one in sessions if _is_release(one.release)})
    if len(releases) > 1:
        what = f"Workers run {len(releases)} releases: {', '.join(releases[:4])}"
        why = "finish the deployment, or roll it back"
        yield HealthFinding(what, why, "See the workers", link("/workers"), 20, "workers", "retrying")


def growth_words(usage: ProcessUsage) -> str:
    """How the memory of a process grows, where it grows on and on."""
    growth = usage.growth
    if growth is None:
        return ""
    return (
        f"{size(format_size(growth.start))} to {size(format_size(growth.now))} in {span(growth.seconds)}"
    )


def _of_memory(
    sessions: Sequence[SessionInfo], usage: Mapping[str, ProcessUsage], link: Link
) -> Iterable[HealthFinding]:
    for one in sessions:
        used = usage.get(one.id)
        growth = None if used is None else used.growth
        if used is None or growth is None:
            continue
        why = "it has no limit of memory: its machine ends it"
        if used.max_memory:
            left = max(used.max_memory - growth.now, 0) * growth.seconds / (growth.now - growth.start)
            why = f"its limit, {size(format_size(used.max_memory))}, is reached in about {span(left)}"
        what = f"Worker {one.worker} grows: {growth_words(used)}"
        where = link(f"/workers/{quote(one.id, safe='')}")
        yield HealthFinding(what, why, "Stop it", where, 72, "lost", "retrying")


def _is_release(text: str) -> bool:
    return bool(text) and not text.startswith("http:")


def _of_tasks(recent: Series, dying: set[str], link: Link) -> Iterable[HealthFinding]:
    for task, rate in recent.by_task().items():
        share = rate.broken / rate.ended if rate.ended else 0.0
        if task in dying or rate.ended < LEAST_ATTEMPTS or share < FAILING:
            continue
        what = f"{task} fails: {100 * share:.0f} % of {rate.ended:,} attempts in 5 minutes"
        where = link("/jobs", q=f"task:{task} state:retrying")
        yield HealthFinding(
            what, "its jobs are tried again", "See them", where, 70, "retrying", "retrying"
        )


# Rules that the findings above cover with more to say.
_COVERED = frozenset({"workers", "oldest", "dead", "failures"})


def _of_alerts(
    alerts: Iterable[KeptAlert], found: Sequence[HealthFinding], link: Link
) -> list[HealthFinding]:
    """What else fires: schedules that are late, a backlog, an old transaction."""
    places = {"depth": "/queues", "schedules": "/schedules", "dead_letters": "/dead"}
    texts = " ".join(one.what for one in found)
    return [
        HealthFinding(
            sentence(one.alert.text),
            f"since {clock(one.since, '%H:%M')}",
            "See it",
            link(places.get(one.alert.rule, "/settings")),
            50,
        )
        for one in alerts
        if one.alert.rule not in _COVERED or one.alert.target not in texts
    ]
