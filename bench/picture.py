"""The picture of README and docs/benchmarks.md: jobs per second that one worker process runs.

python -m bench.picture      docs/images/benchmarks-{light,dark}.svg, from the newest bench/results
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
IMAGES = ROOT / "docs/images"
PANELS = (("pg drain", "PostgreSQL"), ("redis drain", "Redis"), ("sqlite drain", "SQLite"))
WIDTH, LEFT, RIGHT, BAR, GAP, HEAD = 760, 140, 80, 18, 7, 34
THEMES = {
    "light": {"ink": "#16202a", "soft": "#52606d", "bar": "#b3bcc5", "winch": "#0b6e4f"},
    "dark": {"ink": "#e8edf2", "soft": "#a9b4bf", "bar": "#5d6975", "winch": "#2fae84"},
}


def newest(folder: Path = RESULTS) -> dict[str, Any]:
    """The newest run that was not a quick one, or the newest of all."""
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"), reverse=True)]
    whole = [run for run in runs if not run["is_quick"] and "pg drain" in run["scenarios"]]
    found: dict[str, Any] = (whole or runs)[0]
    return found


def picture(run: Mapping[str, Any], theme: str) -> str:
    colours = THEMES[theme]
    parts: list[str] = []
    top = 6
    for scenario, store in PANELS:
        found = run["scenarios"].get(scenario, {})
        rates = {name: one["median"]["rate"] for name, one in found.items() if one["median"].get("rate")}
        if not rates:
            continue
        parts.append(
            f'<text x="{LEFT}" y="{top + 20}" font-weight="600" fill="{colours["ink"]}">{store}: '
            "jobs run per second, one worker process</text>"
        )
        top += HEAD
        for name, rate in sorted(rates.items(), key=lambda pair: -pair[1]):
            width = max(1.0, rate / max(rates.values()) * (WIDTH - LEFT - RIGHT))
            is_winch = name == "winch"
            shown = "Winch" if is_winch else name
            parts.append(
                f'<text x="{LEFT - 10}" y="{top + 14}" text-anchor="end" fill="{colours["ink"]}" '
                f'font-weight="{600 if is_winch else 400}">{escape(shown)}</text>'
                f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR}" rx="2" '
                f'fill="{colours["winch" if is_winch else "bar"]}"/>'
                f'<text x="{LEFT + width + 7:.1f}" y="{top + 14}" '
                f'fill="{colours["soft"]}">{rate:,.0f}</text>'
            )
            top += BAR + GAP
        top += 8
    about = run["about"]
    machine = "; ".join(str(about[name]) for name in ("machine", "stores") if name in about)
    for note in (f"Jobs that do nothing; medians of the run of {run['date']}.", machine):
        parts.append(
            f'<text x="{LEFT}" y="{top + 14}" font-size="12" '
            f'fill="{colours["soft"]}">{escape(note)}</text>'
        )
        top += 17
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 10}" '
        'role="img" aria-label="Jobs run per second by store" '
        f'font-family="system-ui, sans-serif" font-size="14">\n' + "\n".join(parts) + "\n</svg>\n"
    )


def draw(into: Path = IMAGES, folder: Path = RESULTS) -> list[Path]:
    """Write the picture for light and for dark pages."""
    run = newest(folder)
    into.mkdir(parents=True, exist_ok=True)
    written = []
    for theme in THEMES:
        path = into / f"benchmarks-{theme}.svg"
        path.write_text(picture(run, theme))
        written.append(path)
    return written


if __name__ == "__main__":
    for one in draw():
        print(one.relative_to(ROOT))
    sys.exit(0)
