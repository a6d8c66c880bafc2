"""What this worker process bounds for a queue: how many of its jobs run here at once, and how many are
claimed in a time. It counts for itself; limits that hold over the whole fleet are gates in the store.

A claim of several queues has one limit. So a worker with such bounds claims a bounded queue alone, and
asks for no more of its jobs than fit."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

from winch.core.job import Claim
from winch.core.policy.limits import parse_rate
from winch.core.policy.queue_limits import QueueLimit


class _Rate:
    """The claims of the last `per` seconds: at most `n` in any such time."""

    def __init__(self, n: int, per: float) -> None:
        self.per = per
        self.times: deque[float] = deque(maxlen=n)
        self._n = n

    def room(self, now: float) -> int:
        while self.times and self.times[0] <= now - self.per:
            self.times.popleft()
        return self._n - len(self.times)

    def opens_in(self, now: float) -> float:
        """The seconds until there is room; 0 where there is some."""
        return 0.0 if self.room(now) else max(self.times[0] + self.per - now, 0.001)


class QueueBounds:
    """The bounds of one worker."""

    def __init__(
        self,
        limits: Mapping[str, QueueLimit],
        held: Callable[[], Iterable[Claim]],
        monotonic: Callable[[], float],
    ) -> None:
        """`held`: the claims that wait or run here."""
        self._limits = {queue: one.limit for queue, one in limits.items() if one.limit is not None}
        self._rates: dict[str, _Rate] = {}
        for queue, one in limits.items():
            if one.rate is not None:
                n, per = parse_rate(one.rate, "rate")
                self._rates[queue] = _Rate(n, per.total_seconds())
        self._held = held
        self._monotonic = monotonic
        # Claims that are on their way, and those that came and are not delivered: a collecting call
        # claims beside the fetcher.
        self._asked: Counter[str] = Counter()
        self._arrived: Counter[str] = Counter()
        self.is_full: bool = False
        """Whether the last look found a queue that has as many jobs here as it may."""
        self.opens_in: float | None = None
        """The seconds until a rate opens that was closed at the last look."""

    def unbounded(self, queues: Sequence[str]) -> tuple[str, ...]:
        return tuple(one for one in queues if one not in self._limits and one not in self._rates)

    def parts(
        self, queues: Sequence[str], free: Callable[[], int]
    ) -> Generator[tuple[tuple[str, ...], int | None], None, None]:
        """The claims to make, in order: the queues of each, and how many jobs it may bring (None: as
        many as there is room for). `free`: how many slots are free by now. Jobs under a rate are claimed
        for these alone, so that they start at once."""
        self.is_full, self.opens_in = False, None
        together: list[str] = []
        for queue in queues:
            limit, rate = self._limits.get(queue), self._rates.get(queue)
            if limit is None and rate is None:
                together.append(queue)
                continue
            if together:
                yield tuple(together), None
                together = []
            most = free() if rate is not None else MANY
            if limit is not None:
                held = sum(claim.queue == queue for claim in self._held())
                here = held + self._asked[queue] + self._arrived[queue]
                most = min(most, limit - here)
                self.is_full = self.is_full or here >= limit
            if rate is not None:
                now = self._monotonic()
                most = min(most, rate.room(now) - self._asked[queue])
                if (seconds := rate.opens_in(now)) > 0:
                    self.opens_in = min(seconds, self.opens_in or seconds)
            if most > 0:
                self._asked[queue] += most
                try:
                    yield (queue,), most
                finally:
                    self._asked[queue] -= most
        if together:
            yield tuple(together), None

    def claimed(self, claims: Iterable[Claim]) -> None:
        """A claim brought these; `delivered` follows."""
        now = self._monotonic()
        for claim in claims:
            self._arrived[claim.queue] += 1
            rate = self._rates.get(claim.queue)
            if rate is not None:
                rate.times.append(now)

    def delivered(self, claims: Iterable[Claim]) -> None:
        """These count among those that are held."""
        self._arrived.subtract(claim.queue for claim in claims)


MANY = 1_000_000
