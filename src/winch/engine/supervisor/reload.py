"""Sees when an application's Python files change: by watchfiles if it is installed, else by looking."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

LOOK_EVERY = 0.5
OWN = __name__.partition(".")[0]
# Folders whose files are not the application's own, beside hidden ones and virtual environments.
_FOREIGN = frozenset({"__pycache__", "node_modules", "site-packages"})


def app_folder(spec: str, here: Path) -> Path:
    """Where the app's code is: `here` when it is below it, else the folder of its module or package.

    Found without importing anything: the supervisor runs no user code. An app that a module of Winch
    makes is that of a framework's project, whose command was started here.
    """
    top = spec.partition(":")[0].partition(".")[0]
    if top == OWN:
        return here
    found = PathFinder.find_spec(top, [str(here), *sys.path])
    if found is None:
        return here
    places = list(found.submodule_search_locations or ())
    folder = Path(places[0] if places else found.origin or here)
    folder = (folder if places else folder.parent).resolve()
    return here if folder.is_relative_to(here.resolve()) else folder


async def changes(folder: Path) -> AsyncIterator[str]:
    """The name of a changed Python file below the folder, each time some have changed."""
    try:
        import watchfiles
    except ImportError:
        async for name in polled(folder):
            yield name
        return
    async for found in watchfiles.awatch(folder, watch_filter=watchfiles.PythonFilter()):
        yield _shown(min(path for _, path in found), folder)


async def polled(folder: Path) -> AsyncIterator[str]:
    """`changes` by comparing the times of all files, twice a second."""
    before = await asyncio.to_thread(_stamps, folder)
    while True:
        await asyncio.sleep(LOOK_EVERY)
        now = await asyncio.to_thread(_stamps, folder)
        changed = {path for path, _ in now.items() ^ before.items()}
        before = now
        if changed:
            yield _shown(min(changed), folder)


def _stamps(folder: Path) -> dict[str, int]:
    stamps = {}
    for path in _python_files(folder):
        try:
            stamps[path] = os.stat(path).st_mtime_ns  # noqa: PTH116  # many files, twice a second
        except OSError:
            continue  # gone between the listing and the look
    return stamps


def _python_files(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in _FOREIGN
            and not os.path.exists(os.path.join(parent, name, "pyvenv.cfg"))  # noqa: PTH110, PTH118
        ]
        yield from (os.path.join(parent, name) for name in files if name.endswith(".py"))  # noqa: PTH118


def _shown(path: str, folder: Path) -> str:
    return os.path.relpath(path, folder)
