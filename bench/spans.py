"""What jobs noted about their beginnings and ends: how many ran at once, how many began in a time."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable

Span = tuple[int, int, int]
"""The number of a job, its begin and its end, in nanoseconds of the clock that all processes share."""


def most_at_once(spans: Iterable[Span]) -> int:
    """The largest number of jobs that ran at the same moment."""
    edges = sorted(edge for _, begin, end in spans for edge in ((end, -1), (begin, 1)))
    running = most = 0
    for _, change in edges:  # an end comes before a begin of the same moment
        running += change
        most = max(most, running)
    return most


def late_rate(spans: Iterable[Span]) -> float:
    """Jobs a second in the second half of a run."""
    ends = sorted(end for _, _, end in spans)
    late = ends[len(ends) // 2 :]
    return (len(late) - 1) / (late[-1] - late[0]) * 1e9 if len(late) > 1 else 0.0


def most_of_a_key(spans: Iterable[Span], key: Callable[[int], str]) -> int:
    """The largest number of jobs of one key that ran at the same moment."""
    return max(map(most_at_once, _by_key(spans, key).values()), default=0)


def most_begun(spans: Iterable[Span], within: float) -> int:
    """The largest number of jobs that began within so many seconds."""
    recent: deque[int] = deque()
    most = 0
    for begin in sorted(begin for _, begin, _ in spans):
        recent.append(begin)
        while begin - recent[0] >= within * 1e9:
            recent.popleft()
        most = max(most, len(recent))
    return most


def overtaken(spans: Iterable[Span], key: Callable[[int], str]) -> int:
    """How many jobs began after a later one of their key had."""
    found = 0
    for members in _by_key(spans, key).values():
        last = -1
        for number, _, _ in sorted(members, key=lambda span: span[1]):
            found += number < last
            last = max(last, number)
    return found


def _by_key(spans: Iterable[Span], key: Callable[[int], str]) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        found[key(span[0])].append(span)
    return found
