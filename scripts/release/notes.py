"""Make the release notes: move the fragments of changes/ under a heading of CHANGELOG.md.

    make notes VERSION=0.2.0            writes CHANGELOG.md, sets the version and deletes the fragments
    python -m scripts.release.notes 0.2.0 --show     prints the notes of a release, or what they would be

The release job takes the notes of the release from CHANGELOG.md with --show.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The order of the headings: what has to be done comes before what one may like.
HEADINGS = {
    "migration": "Before you upgrade",
    "removed": "Removed",
    "changed": "Changed",
    "added": "Added",
    "fixed": "Fixed",
}
FRAGMENT = re.compile(r"(\d{4,})\.([a-z]+)\.md")
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


@dataclass(frozen=True)
class Fragment:
    path: Path
    number: int
    kind: str
    text: str


def fragments(folder: Path) -> list[Fragment]:
    """The fragments in the order of their numbers; any other file is an error."""
    found = []
    for path in sorted(folder.glob("*")):
        if path.name == "README.md":
            continue
        match = FRAGMENT.fullmatch(path.name)
        if match is None or match[2] not in HEADINGS:
            kinds = ", ".join(HEADINGS)
            raise SystemExit(
                f"changes/{path.name} is no fragment; name it NNNN.kind.md with one of {kinds}"
            )
        text = path.read_text().strip()
        if not text:
            raise SystemExit(f"changes/{path.name} is empty")
        found.append(Fragment(path, int(match[1]), match[2], text))
    return sorted(found, key=lambda one: (one.number, one.kind))


def notes(found: Sequence[Fragment]) -> str:
    """The notes of one release: a heading for each kind, one item for each fragment."""
    parts = []
    for kind, heading in HEADINGS.items():
        items = [item(one.text) for one in found if one.kind == kind]
        if items:
            parts.append("\n".join([f"### {heading}", *items]))
    return "\n\n".join(parts)


def item(text: str) -> str:
    """A list item; further lines of the text are indented below it."""
    lines = text.splitlines()
    return "\n".join([f"- {lines[0]}", *(f"  {line}".rstrip() for line in lines[1:])])


def section(changelog: str, version: str) -> str | None:
    """The notes of this version in the changelog, without its heading."""
    match = re.search(
        rf"^## {re.escape(version)}\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE
    )
    return None if match is None else match[1].strip()


def insert(changelog: str, version: str, text: str) -> str:
    """The changelog with this release before the newest one."""
    head, mark, rest = changelog.partition("\n## ")
    return f"{head.rstrip()}\n\n## {version}\n\n{text}\n{mark}{rest}"


def main(argv: Sequence[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version")
    parser.add_argument("--show", action="store_true", help="print the notes and change nothing")
    options = parser.parse_args(argv)
    version = options.version.removeprefix("v")
    if not VERSION.fullmatch(version):
        parser.error(f"{version!r} is no version; expected one like 0.2.0 or 0.2.0rc1")
    changelog = root / "CHANGELOG.md"
    released = section(changelog.read_text(), version)
    found = fragments(root / "changes")
    if options.show:
        print(notes(found) if released is None else released)
        return 0
    if released is not None:
        raise SystemExit(f"CHANGELOG.md has notes for {version} already")
    if not found:
        raise SystemExit("changes/ has no fragments; there is nothing to release")
    changelog.write_text(insert(changelog.read_text(), version, notes(found)))
    source = root / "src/winch/core/version.py"
    source.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{version}"', source.read_text()))
    for one in found:
        one.path.unlink()
    print(f"CHANGELOG.md: {version} with {len(found)} changes; read it through before you commit")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
