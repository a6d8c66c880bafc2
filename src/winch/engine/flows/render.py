"""The shape of a flow as text: a Mermaid diagram, or an SVG picture that stands alone."""

from __future__ import annotations

from collections import Counter
from xml.sax.saxutils import escape

from winch.core.flow import FlowNote


def mermaid(note: FlowNote) -> str:
    """The flow's shape as a Mermaid diagram."""
    lines = ["flowchart TD"]
    for name, task, number, _ in note.nodes:
        label = task if number == 1 else f"{task} × {number:,}"
        lines.append(f'    n{name}["{_quoted(label)}"]')
    for name, _, _, before in note.nodes:
        lines += [f"    n{one} --> n{name}" for one in before]
    return "\n".join(lines) + "\n"


def svg(note: FlowNote) -> str:
    """The flow's shape as an SVG picture: a column for each distance from the beginning."""
    depth: dict[str, int] = {}
    for name, _, _, before in note.nodes:
        depth[name] = 1 + max((depth[one] for one in before), default=-1)
    rows: Counter[int] = Counter()
    places: dict[str, tuple[int, int]] = {}
    for name, *_ in note.nodes:
        places[name] = (20 + depth[name] * 220, 20 + rows[depth[name]] * 60)
        rows[depth[name]] += 1
    width = 220 * (1 + max(depth.values(), default=0)) + 20
    height = 60 * max(rows.values(), default=1) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="13">'
    ]
    for name, _, _, before in note.nodes:
        x, y = places[name]
        for one in before:
            bx, by = places[one]
            parts.append(f'<line x1="{bx + 180}" y1="{by + 20}" x2="{x}" y2="{y + 20}" stroke="#888"/>')
    for name, task, number, _ in note.nodes:
        x, y = places[name]
        label = task if number == 1 else f"{task} × {number:,}"
        parts.append(
            f'<rect x="{x}" y="{y}" width="180" height="40" rx="6" fill="#fff" stroke="#444"/>'
            f'<text x="{x + 90}" y="{y + 25}" text-anchor="middle">{escape(label[-26:])}</text>'
        )
    return "".join(parts) + "</svg>\n"


def _quoted(text: str) -> str:
    return text.replace('"', "#quot;")
