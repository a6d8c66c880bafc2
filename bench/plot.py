"""Bars of jobs per second, one panel per store and question, drawn without a library."""

from __future__ import annotations

from html import escape

from bench.scenario import Results

PANELS = [
    (f"{store} {what}", f"{name}: {what}")
    for store, name in (("pg", "PostgreSQL"), ("redis", "Redis"), ("sqlite", "SQLite"))
    for what in ("drain", "bulk", "single")
]
WIDTH, LEFT, RIGHT, BAR, GAP, HEAD = 760, 130, 90, 16, 6, 40
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.title{font-weight:600}"
    ".bar{fill:#9aa5b1}.winch{fill:#0b6e4f}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


def plot(results: Results) -> str:
    """The whole picture as SVG; panels without a figure are left out."""
    parts: list[str] = []
    top = 10
    for scenario, title in PANELS:
        rates = {
            name: rate
            for name, series in results.get(scenario, {}).items()
            if (rate := series.median("rate")) is not None
        }
        if rates:
            parts.append(_panel(title, rates, top))
            top += HEAD + len(rates) * (BAR + GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 10}" role="img" '
        f'aria-label="Jobs per second by store"><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )


def _panel(title: str, rates: dict[str, float], top: int) -> str:
    most = max(rates.values())
    parts = [f'<text class="title" x="{LEFT}" y="{top + 22}">{escape(title)}, jobs per second</text>']
    for place, (name, rate) in enumerate(sorted(rates.items(), key=lambda pair: -pair[1])):
        y = top + HEAD - 8 + place * (BAR + GAP)
        width = max(1.0, rate / most * (WIDTH - LEFT - RIGHT))
        kind = "bar winch" if name == "winch" else "bar"
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}"/>'
            f'<text x="{LEFT + width + 6:.1f}" y="{y + 12}">{rate:,.0f}</text>'
        )
    return "".join(parts)
