"""The source tree stays small enough to read: short modules, and few of them in a folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import winch

PACKAGE = Path(winch.__file__).parent
# One module has all cases of one family of verbs, so that a driver's author finds them in one place.
EXEMPT = PACKAGE / "testing" / "conformance"
MOST_LINES = 500
MOST_MODULES = 20


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if not path.is_relative_to(EXEMPT)]


def test_no_module_is_longer_than_500_lines() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in modules()}
    long = {str(path.relative_to(PACKAGE)): n for path, n in lines.items() if n > MOST_LINES}
    assert not long


def test_no_folder_has_more_than_20_modules() -> None:
    folders = Counter(path.parent for path in modules())
    crowded = {str(path.relative_to(PACKAGE)): n for path, n in folders.items() if n > MOST_MODULES}
    assert not crowded
