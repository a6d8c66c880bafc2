"""Charts as SVG, made on the server from numbers: they work without a script and follow the theme.

Colours come from classes, sizes from attributes: the content policy allows no style in the page. Every
chart has a sentence for screen readers, and its numbers as a table beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from winch.web.pages.show import clock, number, span, zone

WIDTH, HEIGHT = 720.0, 180.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 8.0, 12.0, 24.0
# A figure of so many moments ago is still the present one.
LATEST = 3


@dataclass(frozen=True)
class ChartRow:
    """One series: its name, the class that colours it, a value for each moment (None is a gap)."""

    name: str
    tone: str
    values: Sequence[float | None]
    look: str = "line"
    """`line`, `area` (a line with a pale ground) or `bars` (solid, on the baseline, stacked)."""


@dataclass(frozen=True)
class Chart:
    """What a template needs to draw one: the picture for pages without a script, and its figures."""

    title: str
    summary: str
    svg: Markup
    rows: Sequence[ChartRow]
    labels: Sequence[str]
    unit: str = ""
    times: Sequence[int] = ()
    """The start of each moment, in seconds of Unix time; without them the chart cannot be zoomed."""
    aim: float | None = None
    note: str = ""
    empty: str = "nothing in this range"
    shows_now: bool = True

    @property
    def is_empty(self) -> bool:
        return not any(value for row in self.rows for value in row.values)

    def value(self, value: float | None) -> str:
        """A figure with its unit, as the legend and the table show it."""
        if value is None:
            return "–"
        return span(value) if self.unit == "s" else number(value)

    def last(self, row: ChartRow) -> str:
        """The present figure of a series: the newest, where it is of the last moments. The very last is
        left out while it is short."""
        return self.value(next((one for one in reversed(row.values[-LATEST:]) if one is not None), None))

    @property
    def data(self) -> dict[str, Any]:
        """What the script draws it from."""
        return {
            "title": self.title,
            "unit": self.unit,
            "times": list(self.times),
            "labels": list(self.labels),
            "aim": self.aim,
            "rows": [
                {
                    "name": row.name,
                    "tone": row.tone,
                    "look": row.look,
                    "values": [_short(value) for value in row.values],
                }
                for row in self.rows
            ],
        }


def _short(value: float | None) -> float | None:
    """A value as the page carries it: four figures are enough for a picture."""
    return value if value is None or isinstance(value, int) else float(f"{value:.4g}")


# Steps that are round for people: of a number, and of a time in seconds.
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_TIME_STEPS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
    172_800, 604_800,
)  # fmt: skip
MOST_TICKS = 5


def ticks(top: float, unit: str = "") -> list[float]:
    """Four to six values from zero on that are round in their unit; the last is not below `top`."""
    if top <= 0:
        return [0.0, 1.0]
    if unit == "s" and top > 1:
        step: float = next((one for one in _TIME_STEPS if one * MOST_TICKS >= top), 604_800.0)
        while step * MOST_TICKS < top:
            step *= 2
    else:
        power = 10.0 ** math.floor(math.log10(top / MOST_TICKS))
        sizes = [one * power for one in _STEPS]
        if not unit and top >= 1:  # a count has no halves
            sizes = [one for one in sizes if one == int(one)] or [1.0]
        step = next(one for one in sizes if one * MOST_TICKS >= top * 0.999)
    count = max(math.ceil(top / step - 0.001), 1)
    return [round(step * place, 9) for place in range(count + 1)]


def tick_text(value: float, unit: str) -> str:
    """A value beside an axis: never a decimal that its unit does not need."""
    if unit == "s":
        if value == 0:
            return "0"
        if value < 1:
            return f"{value * 1000:.3g} ms"
        if value < 60:
            return f"{value:.3g} s"
        if value < 3600:
            return f"{value / 60:.3g} m"
        return f"{value / 3600:.3g} h" if value < 172_800 else f"{value / 86_400:.3g} d"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def time_ticks(times: Sequence[int], most: int = 7) -> list[tuple[int, str]]:
    """Which moments carry a label: at round times of the page's zone, as (place, label)."""
    if len(times) < 2:
        return []
    length = times[-1] - times[0]
    step = next((one for one in _TIME_STEPS[6:] if length / one <= most), 604_800)
    form = "%d %b" if step >= 86_400 else "%H:%M"
    offset = int(clock_offset(times[-1]))
    return [
        (place, clock(datetime.fromtimestamp(at, UTC), form))
        for place, at in enumerate(times)
        if (at + offset) % step == 0
    ]


def clock_offset(at: int) -> float:
    """How many seconds the page's zone is ahead of UTC at this time."""
    offset = datetime.fromtimestamp(at, UTC).astimezone(zone()).utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


def _frame(
    marks: Sequence[float], labels: Sequence[str], times: Sequence[int], unit: str
) -> list[Markup]:
    parts = []
    bottom, top = HEIGHT - BOTTOM, marks[-1]
    for value in marks:
        y = bottom - value / top * (bottom - TOP)
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                LEFT, WIDTH - RIGHT, y, y
            )
        )
        parts.append(
            Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                LEFT - 6, y + 3.5, tick_text(value, unit)
            )
        )
    count = len(labels)
    found = time_ticks(times) or [
        (place, labels[place]) for place in sorted({0, count // 2, count - 1} if count else set())
    ]
    for place, label in found:
        x = LEFT + (place + 0.5) * (WIDTH - LEFT - RIGHT) / count
        anchor = "start" if place == 0 else "end" if place == count - 1 else "middle"
        parts.append(
            Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
                x, HEIGHT - 6, anchor, label
            )
        )
    return parts


def _svg(parts: Sequence[Markup], summary: str) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, summary, Markup("").join(parts))


def drawn(
    title: str,
    rows: Sequence[ChartRow],
    labels: Sequence[str],
    summary: str,
    *,
    unit: str = "",
    times: Sequence[int] = (),
    aim: float | None = None,
    **more: Any,
) -> Chart:
    """A chart of lines, areas and bars over the same moments; bars stand on each other."""
    count = max(len(labels), 1)
    solid = [row for row in rows if row.look == "bars"]
    sums = [sum(row.values[n] or 0 for row in solid) for n in range(len(labels))]
    found = [value for row in rows if row.look != "bars" for value in row.values if value is not None]
    highest = max([*sums, *found, aim or 0.0], default=0.0)
    marks = ticks(highest, unit)
    step, bottom = (WIDTH - LEFT - RIGHT) / count, HEIGHT - BOTTOM
    parts = _frame(marks, labels, times, unit)

    def height(value: float) -> float:
        return min(value / marks[-1], 1.0) * (bottom - TOP)

    for place in range(len(labels)) if solid else ():
        y = bottom
        for row in solid:
            value = row.values[place] or 0
            if value > 0:
                y -= height(value)
                parts.append(
                    Markup(
                        '<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/>'
                    ).format(
                        row.tone,
                        LEFT + place * step + step * 0.1,
                        y,
                        step * 0.8,
                        max(height(value), 0.8),
                    )
                )
    for row in rows:
        if row.look != "bars":
            parts += _line(row, step, bottom, height)
    if aim is not None:
        y = bottom - height(aim)
        parts.append(
            Markup('<line class="aim" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                LEFT, WIDTH - RIGHT, y, y
            )
        )
    return Chart(title, summary, _svg(parts, summary), rows, labels, unit, tuple(times), aim, **more)


def _line(row: ChartRow, step: float, bottom: float, height: Callable[[float], float]) -> list[Markup]:
    parts, pieces = [], list[list[tuple[float, float]]]([[]])
    for place, value in enumerate(row.values):
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append((LEFT + (place + 0.5) * step, bottom - height(value)))
    for piece in pieces:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in piece)
        if len(piece) == 1:  # a line needs two points
            parts.append(
                Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="2.5"/>').format(
                    row.tone, *piece[0]
                )
            )
        elif piece:
            if row.look == "area":
                parts.append(
                    Markup('<path class="area {}" d="M{:.1f} {:.1f}L{}L{:.1f} {:.1f}Z"/>').format(
                        row.tone, piece[0][0], bottom, path, piece[-1][0], bottom
                    )
                )
            parts.append(Markup('<path class="line {}" d="M{}"/>').format(row.tone, path))
    return parts
