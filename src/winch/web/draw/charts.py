"""Charts as SVG, made on the server from numbers: they work without a script and follow the theme.

Colours come from classes, sizes from attributes: the content policy allows no style in the page. Every
chart has a sentence for screen readers, and its numbers as a table beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from winch.web.pages.show import number, span

WIDTH, HEIGHT = 720.0, 180.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 8.0, 12.0, 24.0


@dataclass(frozen=True)
class ChartRow:
    """One series: its name, the class that colours it, a value for each moment (None is a gap)."""

    name: str
    tone: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Chart:
    """What a template needs to draw one: the picture for pages without a script, and its figures."""

    title: str
    summary: str
    svg: Markup
    rows: Sequence[ChartRow]
    labels: Sequence[str]
    unit: str = ""
    kind: str = "lines"
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
        """The newest figure of a series; a gap at the right edge does not hide it."""
        return self.value(next((one for one in reversed(row.values) if one is not None), None))

    @property
    def data(self) -> dict[str, Any]:
        """What the script draws it from."""
        return {
            "title": self.title,
            "kind": self.kind,
            "unit": self.unit,
            "times": list(self.times),
            "labels": list(self.labels),
            "aim": self.aim,
            "rows": [
                {"name": row.name, "tone": row.tone, "values": [_short(value) for value in row.values]}
                for row in self.rows
            ],
        }


def _short(value: float | None) -> float | None:
    """A value as the page carries it: four figures are enough for a picture."""
    return value if value is None or isinstance(value, int) else float(f"{value:.4g}")


# From where on seconds are shown as minutes, and minutes as hours.
MINUTES, HOURS = 120.0, 7200.0


def nice(top: float, unit: str = "") -> float:
    """A number that is not below `top`, and round in the unit it is shown in."""
    if top <= 0:
        return 1.0
    if unit == "s" and top > MINUTES:
        length = 3600.0 if top > HOURS else 60.0
        return nice(top / length) * length
    power = 10.0 ** math.floor(math.log10(top))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= top * 0.999)


def _show(value: float, unit: str) -> str:
    if unit == "s":
        if value < 1:
            return f"{value * 1000:.3g} ms"
        if value < MINUTES:
            return f"{value:.3g} s"
        return f"{value / 60:.3g} m" if value < HOURS else f"{value / 3600:.3g} h"
    if value >= 10_000:
        return f"{value / 1000:,g}k"
    return f"{value:g}"


def _frame(top: float, labels: Sequence[str], unit: str) -> list[Markup]:
    parts = []
    bottom = HEIGHT - BOTTOM
    for step in (0.0, 0.5, 1.0):
        y = bottom - step * (bottom - TOP)
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                LEFT, WIDTH - RIGHT, y, y
            )
        )
        parts.append(
            Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                LEFT - 6, y + 3.5, _show(top * step, unit)
            )
        )
    count = len(labels)
    for place in sorted({0, count // 2, count - 1}) if count else []:
        x = LEFT + (place + 0.5) * (WIDTH - LEFT - RIGHT) / count
        anchor = "start" if place == 0 else "end" if place == count - 1 else "middle"
        parts.append(
            Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
                x, HEIGHT - 6, anchor, labels[place]
            )
        )
    return parts


def _svg(parts: Sequence[Markup], summary: str, plot: str) -> Markup:
    # `plot` gives the script the place of the drawing, so that a cursor can find its moment.
    return Markup(
        '<svg class="chart" viewBox="0 0 {:g} {:g}" role="img" aria-label="{}" data-plot="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, summary, plot, Markup("").join(parts))


def _plot(count: int) -> str:
    return f"{LEFT:g} {WIDTH - RIGHT:g} {count}"


def bars(
    title: str, rows: Sequence[ChartRow], labels: Sequence[str], summary: str, **more: Any
) -> Chart:
    """Stacked bars, one for each moment; `more` is what else a `Chart` has."""
    count = max(len(labels), 1)
    sums = [sum(row.values[n] or 0 for row in rows) for n in range(len(labels))]
    top = nice(max(sums, default=0))
    width = (WIDTH - LEFT - RIGHT) / count
    bottom = HEIGHT - BOTTOM
    parts = _frame(top, labels, "")
    for place in range(len(labels)):
        y = bottom
        for row in rows:
            value = row.values[place] or 0
            if value <= 0:
                continue
            height = value / top * (bottom - TOP)
            y -= height
            parts.append(
                Markup(
                    '<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" rx="1"/>'
                ).format(row.tone, LEFT + place * width + width * 0.1, y, width * 0.8, max(height, 0.8))
            )
    picture = _svg(parts, summary, _plot(count))
    return Chart(title, summary, picture, rows, labels, **{"kind": "bars", **more})


def lines(
    title: str,
    rows: Sequence[ChartRow],
    labels: Sequence[str],
    summary: str,
    *,
    unit: str = "",
    **more: Any,
) -> Chart:
    """One line for each series; gaps stay gaps."""
    count = max(len(labels), 1)
    found = [value for row in rows for value in row.values if value is not None]
    top = nice(max(found, default=0), unit)
    bottom = HEIGHT - BOTTOM
    step = (WIDTH - LEFT - RIGHT) / count
    parts = _frame(top, labels, unit)
    for row in rows:
        pen, path = "M", []
        for place, value in enumerate(row.values):
            if value is None:
                pen = "M"
                continue
            x = LEFT + (place + 0.5) * step
            y = bottom - min(value / top, 1.0) * (bottom - TOP)
            path.append(f"{pen}{x:.1f} {y:.1f}")
            pen = "L"
            is_alone = (place == 0 or row.values[place - 1] is None) and (
                place + 1 >= len(row.values) or row.values[place + 1] is None
            )
            if is_alone:  # a line needs two points
                parts.append(
                    Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="2.5"/>').format(
                        row.tone, x, y
                    )
                )
        if path:
            parts.append(Markup('<path class="line {}" d="{}"/>').format(row.tone, "".join(path)))
    return Chart(title, summary, _svg(parts, summary, _plot(count)), rows, labels, unit, **more)


def spark(values: Sequence[float], title: str) -> Markup:
    """A small picture for a cell of a table."""
    width, height = 96.0, 22.0
    top = max([*values, 1.0])
    step = width / max(len(values), 1)
    parts = [
        Markup(
            '<rect class="tone-completed" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/>'
        ).format(place * step, height - value / top * height, max(step - 0.8, 0.8), value / top * height)
        for place, value in enumerate(values)
        if value > 0
    ]
    return Markup(
        '<svg class="spark" viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>'
    ).format(width, height, title, Markup("").join(parts))
