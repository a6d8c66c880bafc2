"""Numbers in Prometheus' text format, and counters that only grow.

Two places show the same families. A worker's own port counts what its processes have done since it
started: add up the workers. A server counts what the whole fleet has done since the server started, from
the roll-ups in the store: ask one server. Scrape one kind or the other, not both into one sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from winch.core.version import __version__
from winch.engine.base.operation import Operation
from winch.engine.observe.throughput import BOUNDS, MINUTE, OTHER, Rates, TaskRate
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.protocol import Driver

Sample = tuple[dict[str, str], float]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Names are bounded by what people deploy, but nothing stops a program from inventing queues.
MOST_LABELS = 500
MOST_PAIRS = 200


def family(name: str, kind: str, help_: str, samples: Iterable[Sample]) -> list[str]:
    """One metric family in the text format."""
    lines = [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
    lines += [_sample(name, labels, value) for labels, value in samples]
    return lines


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    inner = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {_number(value)}" if inner else f"{name} {_number(value)}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


Histogram = tuple[dict[int, int], float]
"""How many fell under each of BOUNDS, by its place, and their sum."""


def histogram(name: str, help_: str, samples: Iterable[tuple[dict[str, str], Histogram]]) -> list[str]:
    """A family of histograms in the text format."""
    lines = [f"# HELP {name} {help_}", f"# TYPE {name} histogram"]
    for labels, (buckets, spent) in samples:
        so_far = 0
        for place, bound in enumerate(BOUNDS):
            so_far += buckets.get(place, 0)
            lines.append(_sample(f"{name}_bucket", {**labels, "le": _number(bound)}, so_far))
        total = sum(buckets.values())
        lines.append(_sample(f"{name}_bucket", {**labels, "le": "+Inf"}, total))
        lines.append(_sample(f"{name}_sum", labels, round(spent, 6)))
        lines.append(_sample(f"{name}_count", labels, total))
    return lines


def missed_windows(missed: Mapping[str, int]) -> list[str]:
    return family(
        "winch_schedule_missed_total",
        "counter",
        "Windows of schedules that this process has found missed.",
        (({"schedule": name}, number) for name, number in sorted(missed.items())[:MOST_LABELS]),
    )


def build_info(backend: str) -> list[str]:
    facts = {"version": __version__, "backend": backend}
    return family("winch_build_info", "gauge", "Release and store.", [(facts, 1)])


class Counters:
    """What has been done since this was made, by queue and task."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], TaskRate] = {}

    def add(self, rates: Rates) -> None:
        for queue, tasks in rates.items():
            for task, rate in tasks.items():
                place = (queue, task)
                if place not in self._totals and len(self._totals) >= MOST_PAIRS:
                    place = (OTHER, OTHER)
                self._totals.setdefault(place, TaskRate()).add(rate)

    @property
    def total(self) -> TaskRate:
        """All queues and tasks together."""
        together = TaskRate()
        for rate in self._totals.values():
            together.add(rate)
        return together

    def render(self) -> list[str]:
        """The families of counters and histograms."""
        lines = family(
            "winch_jobs_enqueued_total",
            "counter",
            "Jobs stored by workers, and here by this process.",
            ((labels, rate.enqueued) for labels, rate in self._labelled()),
        )
        lines += family(
            "winch_jobs_started_total",
            "counter",
            "Attempts that were started, counted at their end.",
            ((labels, rate.started) for labels, rate in self._labelled()),
        )
        lines += family(
            "winch_jobs_finished_total",
            "counter",
            "Attempts that ended, by outcome; one that sleeps, waits or snoozes has not ended.",
            (
                ({**labels, "outcome": outcome}, number)
                for labels, rate in self._labelled()
                for outcome, number in _outcomes(rate)
            ),
        )
        lines += family(
            "winch_job_retries_total",
            "counter",
            "Attempts that failed and will be tried again.",
            ((labels, rate.failed) for labels, rate in self._labelled()),
        )
        lines += family(
            "winch_jobs_dead_total",
            "counter",
            "Jobs that died, of a failure or of lost attempts.",
            ((labels, rate.deaths) for labels, rate in self._labelled()),
        )
        lines += self._histogram("winch_job_duration_seconds", "How long attempts ran.", "run")
        lines += self._histogram(
            "winch_job_queue_latency_seconds", "From the moment a job was due to its start.", "wait"
        )
        return lines + self._of_tenants()

    def _of_tenants(self) -> list[str]:
        """How long each tenant waits for its turn: seconds divided by the number give the mean, over
        any time."""
        found: dict[tuple[str, str], tuple[int, float]] = {}
        for (queue, _), rate in sorted(self._totals.items()):
            for tenant, (number, seconds) in rate.tenants.items():
                place = (queue, tenant)
                if place not in found and len(found) >= MOST_PAIRS:
                    place = (queue, OTHER)
                had = found.get(place, (0, 0.0))
                found[place] = (had[0] + number, had[1] + seconds)
        samples = [
            ({"queue": queue, "tenant": tenant}, numbers) for (queue, tenant), numbers in found.items()
        ]
        return [
            *family(
                "winch_tenant_attempts_total",
                "counter",
                "Attempts of a tenant's jobs that ended.",
                ((labels, number) for labels, (number, _) in samples),
            ),
            *family(
                "winch_tenant_wait_seconds_total",
                "counter",
                "From the moment a tenant's jobs were due to their start, added up.",
                ((labels, round(seconds, 6)) for labels, (_, seconds) in samples),
            ),
        ]

    def _labelled(self) -> Iterator[tuple[dict[str, str], TaskRate]]:
        for (queue, task), rate in sorted(self._totals.items()):
            yield {"queue": queue, "task": task}, rate

    def take(self, stored: dict[tuple[str, str], int]) -> None:
        """Count the jobs that a process has stored, by queue and task, and forget them there."""
        for place in list(stored):  # others go on counting
            queue, task = place
            self.add({queue: {task: TaskRate(enqueued=stored.pop(place))}})

    def _histogram(self, name: str, help_: str, which: str) -> list[str]:
        return histogram(
            name,
            help_,
            (
                (labels, (getattr(rate, which), getattr(rate, f"{which}_seconds")))
                for labels, rate in self._labelled()
            ),
        )


def _outcomes(rate: TaskRate) -> Iterator[tuple[str, int]]:
    yield "success", rate.completed
    yield "failure", rate.failed + rate.dead - rate.timeouts
    yield "timeout", rate.timeouts
    yield "cancelled", rate.cancelled
    yield "lost", rate.crashed + rate.lost


class Fleet:
    """What all workers have done since the first look, read from the roll-ups by the minute.

    A line of a process grows while its minute lasts and is then left alone, so the growth of the lines
    is what was done. Kept from look to look: the lines of the last minutes, as they were.
    """

    def __init__(self) -> None:
        self.counters: Counters = Counters()
        self._seen: dict[str, Rates] = {}
        self._latest: int | None = None

    def look(self, driver: Driver, now: int) -> Operation[None]:
        """Count what has grown since the last look; `now` in seconds since the epoch."""
        is_first = self._latest is None
        latest = now // MINUTE.seconds if self._latest is None else self._latest
        oldest = latest - 3
        after = f"{oldest:010}"
        while True:
            which = KvFilter(book=MINUTE.book, after=after, limit=2000)
            lines: list[KvRecord] = yield driver.kv_list(which)
            for line in lines:
                rates = msgspec.json.decode(line.body, type=Rates)
                if not is_first:
                    self.counters.add(_growth(self._seen.get(line.key, {}), rates))
                self._seen[line.key] = rates
                latest = max(latest, int(line.key[:10]))
            if len(lines) < 2000:
                break
            after = lines[-1].key
        self._latest = latest
        gone = f"{latest - 3:010}"
        self._seen = {key: rates for key, rates in self._seen.items() if key > gone}


def _growth(before: Rates, after: Rates) -> Rates:
    grown: Rates = {}
    for queue, tasks in after.items():
        for task, rate in tasks.items():
            was = before.get(queue, {}).get(task)
            grown.setdefault(queue, {})[task] = rate if was is None else rate.less(was)
    return grown
