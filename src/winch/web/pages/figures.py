"""What the overview counts over time: the range of a page, the samples of queues, and the charts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from winch.core.lifecycle import JobState
from winch.engine.base.operation import Operation
from winch.engine.observe.queue_samples import QueueSample, Sample, book_of
from winch.engine.observe.throughput import HOUR, MINUTE, Series, Span, TaskRate, percentile
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import QueueInfo
from winch.web.draw.charts import Chart, ChartRow, drawn
from winch.web.pages.show import clock, span

if TYPE_CHECKING:
    from winch.storage.protocol import Driver
    from winch.web.site import Site

# name -> (resolution, spans, spans in one moment)
RANGES = {
    "15m": (MINUTE, 15, 1),
    "1h": (MINUTE, 60, 1),
    "6h": (MINUTE, 360, 5),
    "24h": (HOUR, 24, 1),
    "7d": (HOUR, 168, 2),
    "30d": (HOUR, 720, 12),
}
# What a range is called in a sentence.
RANGE_WORDS = {
    "15m": "the last 15 minutes",
    "1h": "the last hour",
    "6h": "the last 6 hours",
    "24h": "the last 24 hours",
    "7d": "the last 7 days",
    "30d": "the last 30 days",
}
GROUPS = ("outcome", "queue", "task", "tenant", "worker")
Wanted = Callable[[str, str], bool]
"""Whether the rates of a queue and task count."""
TONES = ("tone-a", "tone-b", "tone-c", "tone-d")
OTHERS = "tone-e"
MOST_MOMENTS = 72
# Minutes are kept for 26 hours.
MINUTES_FOR = 24 * 3600
LONGEST = 35 * 86_400
SHORTEST = 30
AIM_SHOWN = 4
# The sample that paces begin with is of minutes ago: it need not be read each second.
SAMPLE_FOR = 5.0
# Minutes that a pace is of.
RECENT = 5
# A queue grows when so many times more jobs come than leave, and drains when so many times more leave.
GROWING = 1.05


@dataclass(frozen=True)
class Window:
    """The range that a page shows: `count` spans up to `end`, `fold` of them in one moment. `name` is
    empty for a range from a time to a time."""

    name: str
    span: Span
    count: int
    fold: int
    end: int

    @property
    def start(self) -> int:
        """The beginning of the first span, in seconds since the epoch."""
        return (self.end // self.span.seconds - self.count + 1) * self.span.seconds

    @property
    def step(self) -> int:
        """The length of one moment in seconds."""
        return self.span.seconds * self.fold

    @property
    def moments(self) -> int:
        return self.count // self.fold

    @property
    def times(self) -> list[int]:
        return [self.start + n * self.step for n in range(self.moments)]

    @property
    def labels(self) -> list[str]:
        form = "%d %b %H:%M" if self.count * self.span.seconds > 86_400 else "%H:%M"
        return [clock(datetime.fromtimestamp(at, UTC), form) for at in self.times]

    @property
    def words(self) -> str:
        if self.name:
            return RANGE_WORDS[self.name]
        form = "%d %b %H:%M" if self.count * self.span.seconds > 86_400 else "%H:%M"
        first, last = (datetime.fromtimestamp(at, UTC) for at in (self.start, self.end))
        return f"{clock(first, form)} to {clock(last, form)}"

    def trimmed(self, first: int) -> Window:
        """Without the moments before `first`, but for at least a dozen: a young store is not drawn as
        one that was idle."""
        gone = min((first - self.start) // self.step, self.moments - 12)
        return self if gone <= 0 else replace(self, count=self.count - gone * self.fold)


def window_of(name: str, start: int, end: int, now: int) -> Window:
    """The range that an address asks for: from a time to a time, or one of RANGES up to now."""
    if 0 < start < end <= now + 86_400 and end - start <= LONGEST:
        is_short = end - start <= 6 * 3600 and now - start < MINUTES_FOR
        resolution = MINUTE if is_short else HOUR
        count = max(-(-(end - start) // resolution.seconds), 1)
        fold = max(-(-count // MOST_MOMENTS), 1)
        return Window("", resolution, -(-count // fold) * fold, fold, min(end, now))
    chosen = name if name in RANGES else "1h"
    resolution, count, fold = RANGES[chosen]
    return Window(chosen, resolution, count, fold, now)


def read_samples(driver: Driver, window: Window) -> Operation[dict[int, Sample]]:
    """The last sample of each moment, by its place."""
    book, seconds = book_of(window.span), window.span.seconds
    first, last = window.start // seconds, window.end // seconds
    which = KvFilter(book=book.name, after=f"{first - 1:010}", before=f"{last + 1:010}", limit=5000)
    lines: list[KvRecord] = yield driver.kv_list(which)
    newest: dict[int, str] = {}
    for line in lines:
        newest[(int(line.key[:10]) - first) // window.fold] = line.body
    return {
        place: msgspec.json.decode(body, type=Sample)
        for place, body in sorted(newest.items())
        if 0 <= place < window.moments
    }


def first_time(window: Window, series: Series, samples: dict[int, Sample]) -> int:
    """When there was something first."""
    places = [place for place, rates in enumerate(series.rates) if rates]
    times = [series.times[places[0]]] if places else []
    times += [window.times[min(samples)]] if samples else []
    return min(times, default=window.end)


def fold(series: Series, window: Window, wanted: Wanted | None = None) -> list[TaskRate]:
    """One rate for each moment of the window; the series may begin before it."""
    merged = series.merged(wanted)
    merged = merged[len(merged) - window.count :]
    folded = []
    for start in range(0, window.moments * window.fold, window.fold):
        one = TaskRate()
        for rate in merged[start : start + window.fold]:
            one.add(rate)
        folded.append(one)
    return folded


def _per_minute(number: int, window: Window, place: int, now: int) -> float | None:
    """A count of one moment as so many a minute. The newest moment is not over: it counts for the time
    that it has had, and is left out while that is short."""
    length = min(window.step, now - window.times[place])
    if length < min(window.step, SHORTEST):
        return None
    value = number * 60 / length
    return round(value, 1) if value < 10 else round(value)


def _named(series: Series, group: str) -> list[tuple[str, Wanted]]:
    """The four largest of a grouping, each with the test of its queue and task. By worker, the series
    has workers in the place of queues."""
    sizes: dict[str, int] = {}
    for one in series.rates:
        for queue, tasks in one.items():
            for task, rate in tasks.items():
                name = task if group == "task" else queue
                sizes[name] = sizes.get(name, 0) + rate.ended
    names = sorted(sizes, key=lambda name: -sizes[name])

    def test(wanted: frozenset[str]) -> Wanted:
        return lambda queue, task: (task if group == "task" else queue) in wanted

    found = [(name, test(frozenset({name}))) for name in names[:4]]
    if len(names) > 4:
        rest = names[4:]
        found.append((_others(len(rest)), test(frozenset(rest))))
    return found


def _others(number: int) -> str:
    return "1 other" if number == 1 else f"{number} others"


def _tenants(folded: Sequence[TaskRate]) -> list[str]:
    sizes: dict[str, int] = {}
    for rate in folded:
        for name, (number, _) in rate.tenants.items():
            sizes[name] = sizes.get(name, 0) + number
    return sorted(sizes, key=lambda name: -sizes[name])[:4]


def recent_minutes() -> float:
    """How long the last RECENT minutes have been: the newest is not over."""
    return RECENT - 1 + max(time.time() % 60, 5) / 60


def read_before(driver: Driver, now: float) -> Operation[Sample | None]:
    """The sample of some minutes ago: the oldest of the last RECENT minutes and the one before them."""
    minute = int(now) // MINUTE.seconds
    which = KvFilter(
        book=book_of(MINUTE).name, after=f"{minute - RECENT - 1:010}", before=f"{minute:010}", limit=1
    )
    for line in (yield driver.kv_list(which)):
        sample = msgspec.json.decode(line.body, type=Sample)
        at = sample.at or (int(line.key[:10]) + 1) * float(MINUTE.seconds)
        return msgspec.structs.replace(sample, at=at) if now - at > SHORTEST else None
    return None


async def sample_before(site: Site) -> Sample | None:
    """`read_before`, shared by open pages."""
    found: Sample | None = await site.kept(
        "sample before", lambda: site.client.arun(read_before(site.driver, time.time())), SAMPLE_FOR
    )
    return found


def arriving(rate: TaskRate, queue: QueueInfo, before: Sample | None) -> float:
    """How many jobs a queue gets in a minute; `rate` is of the RECENT minutes. Workers and servers count
    the jobs that they store. Of the jobs of other producers the store shows what has ended, and by how
    much the queue has grown since the sample `before`."""
    counted = rate.enqueued / recent_minutes()
    if before is None:
        return counted
    was = before.queues.get(queue.name, QueueSample(0, 0)).ready
    grown = (queue.counts.get(JobState.READY, 0) - was) * 60 / (time.time() - before.at)
    return max(counted, rate.ended / recent_minutes() + grown)


def drains_in(queue: QueueInfo, out: float, stored: float) -> str:
    """How long the backlog takes at the present pace: so many jobs come in a minute, so many leave."""
    ready = queue.counts.get(JobState.READY, 0)
    if not ready:
        return "–"
    if queue.paused_at is not None:
        return "paused"
    if not queue.sessions:
        return "no worker"
    if not out:
        return "not moving"
    if stored > GROWING * out:
        return "growing"
    if out < GROWING * stored:
        return "keeps up"
    return f"~{span(round(60 * ready / (out - stored)))}"


def throughput_chart(
    series: Series, window: Window, group: str, now: int, wanted: Wanted | None = None
) -> Chart:
    folded = fold(series, window, wanted)

    def paced(numbers: Sequence[int]) -> list[float | None]:
        return [_per_minute(number, window, place, now) for place, number in enumerate(numbers)]

    note = "attempts a minute"
    if group == "tenant":
        note = "attempts started a minute, by tenant"
        rows = [
            ChartRow(name, tone, paced([rate.tenants.get(name, (0, 0.0))[0] for rate in folded]))
            for name, tone in zip(_tenants(folded), TONES, strict=False)
        ]
    elif group in ("queue", "task", "worker"):
        note = f"attempts a minute, by {group}"
        rows = [
            ChartRow(name, tone, paced([rate.ended for rate in fold(series, window, test)]))
            for (name, test), tone in zip(_named(series, group), (*TONES, OTHERS), strict=False)
        ]
    else:
        rows = [
            ChartRow("completed", "tone-completed", paced([rate.completed for rate in folded]), "area"),
            ChartRow("dead", "tone-dead", paced([rate.deaths for rate in folded]), "bars"),
            ChartRow(
                "failed, will retry", "tone-retrying", paced([r.broken - r.dead for r in folded]), "bars"
            ),
        ]
        if any(rate.cancelled for rate in folded):
            rows.append(
                ChartRow("cancelled", "tone-cancelled", paced([rate.cancelled for rate in folded]))
            )
    done = sum(rate.completed for rate in folded)
    broken = sum(rate.broken for rate in folded)
    summary = f"{done:,} attempts completed and {broken:,} failed in {window.words}."
    return drawn("Throughput", rows, window.labels, summary, times=window.times, note=note)


def wait_chart(
    series: Series, window: Window, group: str, aim: float | None, wanted: Wanted | None = None
) -> Chart:
    folded = fold(series, window, wanted)
    total = TaskRate()
    for rate in folded:
        total.add(rate)
    note = ""
    if group == "tenant":
        note, aim = "mean by tenant", None
        rows = [
            ChartRow(
                name,
                tone,
                [_mean(rate.tenants.get(name, (0, 0.0))) for rate in folded],
            )
            for name, tone in zip(_tenants(folded), TONES, strict=False)
        ]
    elif group in ("queue", "task", "worker"):
        note = f"p95 by {group}"
        rows = [
            ChartRow(name, tone, [percentile(rate.wait, 0.95) for rate in fold(series, window, test)])
            for (name, test), tone in zip(_named(series, group), (*TONES, OTHERS), strict=False)
        ]
    else:
        rows = [
            ChartRow(name, tone, [percentile(rate.wait, share) for rate in folded])
            for name, tone, share in (
                ("p50", "tone-ready", 0.5),
                ("p95", "tone-a", 0.95),
                ("p99", "tone-b", 0.99),
            )
        ]
    highest = max((value for row in rows for value in row.values if value is not None), default=0.0)
    if aim is not None and aim > AIM_SHOWN * highest:
        note, aim = (
            f"{note} · objective {span(aim)}".removeprefix(" · "),
            None,
        )  # it would press the lines flat
    middle, high = (percentile(total.wait, share) for share in (0.5, 0.95))
    summary = f"Half waited less than {span(middle)}, 95 % less than {span(high)}."
    return drawn(
        "Wait in queue", rows, window.labels, summary, unit="s", times=window.times, aim=aim, note=note
    )


def _mean(found: tuple[int, float]) -> float | None:
    return found[1] / found[0] if found[0] else None


def ready_chart(samples: dict[int, Sample], window: Window, shift: int = 0) -> Chart:
    """Ready jobs by queue; `shift` moments of the samples are before the window."""
    names: dict[str, int] = {}
    for sample in samples.values():
        for name, queue in sample.queues.items():
            names[name] = max(names.get(name, 0), queue.ready)
    top = sorted((name for name in names if names[name]), key=lambda name: -names[name])
    shown, rest = top[:4], top[4:]

    def values(wanted: Sequence[str]) -> list[float | None]:
        return [
            None
            if n + shift not in samples
            else sum(samples[n + shift].queues.get(name, QueueSample(0, 0)).ready for name in wanted)
            for n in range(window.moments)
        ]

    rows = [
        ChartRow(name, tone, values([name]), "area" if n == 0 else "line")
        for n, (name, tone) in enumerate(zip(shown, TONES, strict=False))
    ]
    if rest:
        rows.append(ChartRow(_others(len(rest)), OTHERS, values(rest)))
    summary = (
        f"The longest queue was {top[0]} with {names[top[0]]:,} ready jobs."
        if top
        else "No queue had jobs waiting when a server looked."
    )
    return drawn(
        "Ready jobs by queue", rows, window.labels, summary, times=window.times, empty="no job waited"
    )


def slots_chart(samples: dict[int, Sample], window: Window, shift: int = 0) -> Chart:
    found = [samples.get(n + shift) for n in range(window.moments)]
    rows = [
        ChartRow(
            "busy",
            "tone-a",
            [None if one is None else min(one.busy, one.slots) for one in found],
            "area",
        ),
        ChartRow("slots", "tone-ready", [None if one is None else one.slots for one in found]),
    ]
    known = [one for one in found if one is not None]
    summary = "No server took a sample in this range."
    if known:
        summary = f"{known[-1].busy:,} of {known[-1].slots:,} slots were busy at the last look."
    return drawn(
        "Busy slots", rows, window.labels, summary, times=window.times, empty="no worker was there"
    )
