"""A stored traceback as what a reader looks for: the frames of their own code, the rest folded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

# What is not the reader's own code, by its path.
_LIBRARY = re.compile(
    r"(?:site|dist)-packages[\\/]|[\\/]lib(?:64)?[\\/]python3|[\\/]lib[\\/]python|^<frozen |^<string>|"
    r"[\\/]src[\\/]winch[\\/]|[\\/]importlib[\\/]"
)
_PACKAGE = re.compile(r"(?:site|dist)-packages[\\/]([^\\/]+)|[\\/]src[\\/](winch)[\\/]")
_FRAME = re.compile(r'^\s+File "(.+)", line (\d+)(?:, in (.+))?$')
_INTRO = re.compile(r"^\s*(?:\+ )?(?:Exception Group )?Traceback \(most recent call last\):$")
_BETWEEN = ("The above exception was", "During handling of the above")
MOST_LINES = 2000


@dataclass
class Frame:
    """One frame: where, and its lines of code."""

    path: str
    line: str
    name: str
    code: list[str] = field(default_factory=list)
    is_last: bool = False

    @property
    def is_own(self) -> bool:
        return not _LIBRARY.search(self.path)

    @property
    def short(self) -> str:
        """The last parts of the path: enough to know the file."""
        parts = re.split(r"[\\/]", self.path)
        return "/".join(parts[-2:])


@dataclass
class Block:
    """A stretch of the traceback. `kind`: `frames` (own code), `folded` (others'), `cause` (the error)
    or `between` (how two errors belong together)."""

    kind: str
    frames: list[Frame] = field(default_factory=list)
    text: str = ""

    @property
    def names(self) -> str:
        """The packages that the folded frames are of."""
        found = []
        for frame in self.frames:
            match = _PACKAGE.search(frame.path)
            name = (match[1] or match[2]).removesuffix(".py") if match else "python"
            if name not in found:
                found.append(name)
        return ", ".join(found[:5])


def blocks(traceback: str) -> list[Block]:
    """The traceback as stretches, in its order; a text that is none is one `cause`."""
    found: list[Block] = []
    frame: Frame | None = None
    for line in traceback.splitlines()[:MOST_LINES]:
        match = _FRAME.match(line)
        if match:
            frame = Frame(match[1], match[2], match[3] or "")
            kind = "frames" if frame.is_own else "folded"
            if not found or found[-1].kind != kind:
                found.append(Block(kind))
            found[-1].frames.append(frame)
        elif not line.strip() or _INTRO.match(line):
            frame = None
        elif frame is not None and line.startswith("    "):
            if not set(line.strip()) <= set("^~|+- "):
                frame.code.append(line.strip())
        elif line.strip().startswith(_BETWEEN):
            frame = None
            found.append(Block("between", text=line.strip()))
        else:
            frame = None
            if found and found[-1].kind == "cause":
                found[-1].text += "\n" + line
            else:
                found.append(Block("cause", text=line))
    _mark(found)
    return found


def _mark(found: Sequence[Block]) -> None:
    """Mark the last frame of own code before each error: the line that a reader wants."""
    last: Frame | None = None
    for block in found:
        if block.kind == "frames":
            last = block.frames[-1]
        elif block.kind == "cause" and last is not None:
            last.is_last, last = True, None
