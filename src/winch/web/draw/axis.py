"""Marks of a time axis: at distances that are round in their unit."""

from __future__ import annotations

import math
from typing import NamedTuple

from winch.web.draw.charts import tick_text
from winch.web.pages.show import span

STEPS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900,
    1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000,
)  # fmt: skip


class Axis(NamedTuple):
    """Where the axis begins, the distance of its marks, and how many of them it has; in seconds."""

    start: float
    step: float
    steps: int

    @property
    def end(self) -> float:
        return self.start + self.steps * self.step

    def mark(self, number: int) -> str:
        """The label of a mark, as a length of time: no decimal that its unit does not need."""
        seconds = number * self.step
        return span(seconds) if seconds >= 60 or not seconds else tick_text(seconds, "s")


def axis_of(first: float, last: float, most: int, *, is_clock: bool = False) -> Axis:
    """An axis over this stretch with at most `most` distances. With `is_clock` it begins at a round time
    of day, else at `first`."""
    length = max(last - first, STEPS[0])
    step = next((one for one in STEPS if length / one <= most), STEPS[-1])
    start = math.floor(first / step) * step if is_clock else first
    return Axis(start, step, max(math.ceil((first + length - start) / step - 1e-6), 1))
