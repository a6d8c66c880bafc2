"""Draw the diagrams of the documentation as SVG, each for a light and for a dark page.

    python scripts/diagrams.py            write docs/images/diagrams/*.svg
    python scripts/diagrams.py --check    only compare

The life of a job takes its arrows from `winch.core.lifecycle`: a verb that the table does not allow cannot be drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from winch.core.lifecycle import ENQUEUED, TRANSITIONS, JobState

INTO = Path(__file__).parent.parent / "docs/images/diagrams"


@dataclass(frozen=True)
class Theme:
    name: str
    ink: str
    soft: str
    line: str
    box: str
    accent: str
    accent_ink: str
    done: str
    bad: str


LIGHT = Theme(
    "light", "#16202a", "#52606d", "#7b8794", "#f3f6f8", "#0b6e4f", "#ffffff", "#dff3ea", "#fbe4e2"
)
DARK = Theme(
    "dark", "#e8edf2", "#a9b4bf", "#7f8c99", "#262c36", "#2fae84", "#0d1512", "#173a2d", "#45211f"
)


@dataclass
class Picture:
    """Boxes, arrows and words on one sheet."""

    width: int
    height: int
    title: str
    theme: Theme
    parts: list[str] = field(default_factory=list)

    def box(
        self, x: float, y: float, w: float, h: float, text: str, *, kind: str = "box", note: str = ""
    ) -> None:
        theme = self.theme
        fills = {
            "box": theme.box,
            "accent": theme.accent,
            "done": theme.done,
            "bad": theme.bad,
            "plain": "none",
        }
        ink = theme.accent_ink if kind == "accent" else theme.ink
        edge = theme.accent if kind == "accent" else theme.line
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="7" fill="{fills[kind]}" stroke="{edge}" stroke-width="1.4"/>'
        )
        middle = y + h / 2 + (5 if not note else -2)
        self.words(x + w / 2, middle, text, anchor="middle", weight=600, ink=ink)
        if note:
            self.words(
                x + w / 2,
                middle + 17,
                note,
                anchor="middle",
                size=12,
                ink=ink if kind == "accent" else theme.soft,
            )

    def frame(self, x: float, y: float, w: float, h: float, text: str) -> None:
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="9" fill="none" stroke="{self.theme.line}" '
            f'stroke-width="1.2" stroke-dasharray="5 4"/>'
        )
        self.words(x + 12, y + 20, text, size=13, weight=600, ink=self.theme.soft)

    def words(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: str = "start",
        size: int = 14,
        weight: int = 400,
        ink: str = "",
    ) -> None:
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
            f'fill="{ink or self.theme.ink}">{escape(text)}</text>'
        )

    def arrow(
        self,
        path: str,
        text: str = "",
        at: tuple[float, float] = (0, 0),
        *,
        anchor: str = "middle",
        dashed: bool = False,
    ) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{self.theme.line}" stroke-width="1.6" marker-end="url(#tip)"{dash}/>'
        )
        if text:
            self.words(*at, text, anchor=anchor, size=12, ink=self.theme.soft)

    def line(self, path: str) -> None:
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{self.theme.line}" stroke-width="1.2" stroke-dasharray="3 4"/>'
        )

    def svg(self) -> str:
        tip = (
            f'<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{self.theme.line}"/></marker></defs>'
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(self.title)}" font-family="system-ui, sans-serif">{tip}\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def processes(theme: Theme) -> Picture:
    """The processes, and which of them communicate."""
    it = Picture(900, 400, "Producers, the store, and the processes of a worker", theme)
    it.frame(10, 20, 200, 260, "Your application")
    it.box(30, 60, 160, 54, "Web process", note="task.enqueue(…)")
    it.box(30, 132, 160, 54, "Script, shell", note="winch enqueue")
    it.box(30, 204, 160, 54, "Other languages", note="HTTP API")
    it.box(300, 90, 170, 130, "Store", kind="accent", note="SQLite, Postgres, Redis")
    it.frame(560, 20, 330, 260, "winch worker")
    it.box(580, 56, 290, 62, "Supervisor", note="heartbeats, rescue, schedules, pruning")
    it.box(580, 188, 135, 70, "Child", note="runs your handlers")
    it.box(735, 188, 135, 70, "Child", note="runs your handlers")
    it.arrow("M190 87 L298 120", "store a job", (247, 84))
    it.arrow("M190 159 L298 155")
    it.arrow("M190 231 L298 190")
    it.arrow("M578 87 L472 120", "extend leases", (516, 78))
    it.arrow("M472 165 L578 208", "claim", (520, 168))
    it.arrow("M578 240 L472 200", "finish", (514, 244))
    it.arrow("M647 120 L647 186", "start, watch, replace", (655, 157), anchor="start")
    it.arrow("M802 120 L802 186")
    it.box(300, 310, 170, 62, "winch serve", note="dashboard and HTTP API")
    it.arrow("M385 308 L385 222")
    it.words(500, 334, "No broker and no scheduler process:", size=13, ink=theme.soft)
    it.words(500, 354, "workers and servers share the maintenance.", size=13, ink=theme.soft)
    return it


# (from, to, verbs, path, where the words stand). Only arrows that people meet every day; the page lists all.
DAILY: list[tuple[str, str, tuple[str, ...], str, tuple[float, float]]] = [
    ("scheduled", "ready", ("promote",), "M205 78 L318 165", (246, 140)),
    ("blocked", "ready", ("admit",), "M205 290 L318 203", (246, 238)),
    ("ready", "running", ("claim",), "M440 184 L528 184", (484, 174)),
    ("running", "ready", ("release", "rescue"), "M560 208 C540 262 430 262 400 210", (482, 268)),
    ("running", "retrying", ("finish",), "M590 158 L590 102", (618, 136)),
    ("retrying", "ready", ("promote",), "M528 75 C460 75 410 100 392 156", (430, 82)),
    ("running", "completed", ("finish",), "M650 175 L758 84", (700, 112)),
    ("running", "cancelled", ("finish",), "M650 184 L758 184", (704, 176)),
    ("running", "dead", ("finish", "rescue"), "M650 193 L758 284", (668, 262)),
    ("dead", "ready", ("retry",), "M758 312 C600 350 400 330 384 212", (590, 340)),
]
SPOTS: dict[str, tuple[float, float, str]] = {
    "scheduled": (85, 52, "waits for its time"),
    "blocked": (85, 262, "waits at a gate"),
    "ready": (320, 158, "waits for a slot"),
    "running": (530, 158, "on a worker"),
    "retrying": (530, 48, "waits to try again"),
    "completed": (760, 48, "final"),
    "cancelled": (760, 158, "final"),
    "dead": (760, 268, "final, kept"),
}


def life(theme: Theme) -> Picture:
    """The states of a job and the verbs between them."""
    it = Picture(900, 370, "The states of a job", theme)
    for source, target, verbs, path, at in DAILY:
        for verb in verbs:
            if JobState(target) not in TRANSITIONS[verb][JobState(source)]:
                raise ValueError(f"{verb} does not lead from {source} to {target}")
        it.arrow(path, ", ".join(verbs), at)
    for name, (x, y, note) in SPOTS.items():
        kind = {"ready": "accent", "running": "accent", "completed": "done", "dead": "bad"}.get(
            name, "box"
        )
        it.box(x, y, 120, 52, name, kind=kind, note=note)
    if {state.value for state in JobState} != {*SPOTS}:
        raise ValueError("the picture lacks a state, or has one too many")
    if {state.value for state in ENQUEUED} != {"scheduled", "blocked", "ready"}:
        raise ValueError("the arrows of enqueue are others now")
    it.words(8, 190, "enqueue", size=12, ink=theme.soft)
    it.arrow("M30 176 C30 120 50 84 83 80")
    it.arrow("M30 200 C30 250 50 284 83 286")
    it.arrow("M62 186 L318 185")
    return it


def fencing(theme: Theme) -> Picture:
    """A worker that stalls, a second one that takes over, and the write that is refused."""
    it = Picture(900, 430, "A stalled worker loses its claim, and its late write is refused", theme)
    columns = {"Worker A": 130, "Store": 450, "Worker B": 770}
    for name, x in columns.items():
        it.box(x - 85, 12, 170, 40, name, kind="accent" if name == "Store" else "box")
        it.line(f"M{x} 52 L{x} 420")
    it.arrow("M130 90 L448 90", "claim", (290, 82))
    it.arrow("M450 118 L132 118", "job 7, token 5f2c…", (290, 110), dashed=True)
    it.box(40, 136, 180, 118, "stalls", note="paused, no heartbeat", kind="bad")
    it.words(462, 160, "the lease ends (30 s): rescue", size=13)
    it.words(462, 178, "job 7 is ready again", size=13, ink=theme.soft)
    it.arrow("M770 206 L452 206", "claim", (620, 198))
    it.arrow("M450 234 L768 234", "job 7, token 91ab…", (610, 226), dashed=True)
    it.arrow("M130 284 L448 284", "finish with token 5f2c…", (290, 276))
    it.arrow("M450 312 L132 312", "refused: lost claim", (290, 304), dashed=True)
    it.arrow("M770 350 L452 350", "finish with token 91ab…", (610, 342))
    it.arrow("M450 378 L768 378", "completed", (610, 370), dashed=True)
    it.words(450, 410, "Only the current token changes the job.", anchor="middle", size=13, weight=600)
    return it


DIAGRAMS: dict[str, Callable[[Theme], Picture]] = {
    "processes": processes,
    "life": life,
    "fencing": fencing,
}


def drawn() -> dict[Path, str]:
    return {
        INTO / f"{name}-{theme.name}.svg": draw(theme).svg()
        for name, draw in DIAGRAMS.items()
        for theme in (LIGHT, DARK)
    }


def main() -> int:
    differ = {
        path: text for path, text in drawn().items() if not path.exists() or path.read_text() != text
    }
    if "--check" in sys.argv:
        for path in differ:
            print(f"{path.name} differs: run make reference")
        return 1 if differ else 0
    INTO.mkdir(parents=True, exist_ok=True)
    for path, text in differ.items():
        path.write_text(text)
        print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
