"""Small pictures for cells of tables: a line, bars over time, a heat map of a week."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from markupsafe import Markup

WIDTH, HEIGHT = 72.0, 18.0


def line(values: Sequence[float], title: str, look: str = "") -> Markup:
    """A line; a flat one lies at the bottom."""
    top = max([*values, 1e-9])
    step = WIDTH / max(len(values) - 1, 1)
    points = [
        f"{'L' if n else 'M'}{n * step:.1f} {HEIGHT - 1 - value / top * (HEIGHT - 3):.1f}"
        for n, value in enumerate(values)
    ]
    return Markup(
        '<svg class="spark{}" viewBox="0 0 {:g} {:g}" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><path d="{}"/></svg>'
    ).format(f" tone-{look}" if look else "", WIDTH, HEIGHT, title, "".join(points))


def trend(values: Sequence[int], title: str) -> Markup:
    """Bars on a baseline, one for each hour."""
    width, height = 96.0, 24.0
    top = max([*values, 1])
    step = width / max(len(values), 1)
    bars = [
        Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
            n * step + 0.5,
            height - 1 - max(value / top * (height - 3), 2.5),
            step - 1,
            max(value / top * (height - 3), 2.5),
        )
        for n, value in enumerate(values)
        if value
    ]
    return Markup(
        '<svg class="trend" viewBox="0 0 {:g} {:g}" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><path d="M0 {:g}H{:g}"/>{}</svg>'
    ).format(width, height, title, height - 0.5, width, Markup("").join(bars))


def week(
    starts: datetime, counts: Sequence[Sequence[int]], name_of: Callable[[datetime], str]
) -> Markup:
    """A heat map: a row for each day, a cell for each hour; a cell names its moment and its number."""
    cell, tall, left, head = 40, 24, 84, 18
    top = max([*(n for row in counts for n in row), 1])
    parts = [
        Markup('<text class="hour" x="{}" y="{}">{:02}</text>').format(left + hour * cell + 2, 12, hour)
        for hour in range(0, 24, 3)
    ]
    for day, row in enumerate(counts):
        at = starts + timedelta(days=day)
        y = head + day * tall
        parts.append(Markup('<text x="0" y="{}">{}</text>').format(y + 15, name_of(at)))
        for hour, number in enumerate(row):
            level = 0 if not number else 1 + min(3, round(3 * number / top))
            parts.append(
                Markup(
                    '<rect class="heat-{}" x="{}" y="{}" width="{}" height="{}" rx="3">'
                    "<title>{} {:02}:00, {} {}</title></rect>"
                ).format(
                    level, left + hour * cell, y, cell - 3, tall - 3, name_of(at), hour, number,
                    "job" if number == 1 else "jobs",
                )
            )  # fmt: skip
            if number:
                parts.append(
                    Markup('<text class="count" x="{}" y="{}">{}</text>').format(
                        left + hour * cell + (cell - 3) / 2, y + 14, number if number < 1000 else "999+"
                    )
                )
    width, height = left + 24 * cell, head + len(counts) * tall
    return Markup(
        '<svg class="week" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="Jobs of '
        'schedules in the next {} days by the hour">{}</svg>'
    ).format(width, height, width, height, len(counts), Markup("").join(parts))
