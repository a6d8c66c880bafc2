"""Changed files are noticed, and only the application's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from winch.engine.supervisor import reload


@pytest.mark.parametrize("how", [reload.changes, reload.polled])
def test_changed_python_files_are_named(
    how: Callable[[Path], AsyncIterator[str]], tmp_path: Path
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "tasks.py").write_text("a = 1")
    for foreign in (".venv", "__pycache__", "node_modules"):
        (tmp_path / foreign).mkdir()

    async def main() -> None:
        seen: list[str] = []

        async def watch() -> None:
            async for name in how(tmp_path):
                seen.append(name)  # noqa: PERF401  # read while it grows

        watching = asyncio.create_task(watch())
        await asyncio.sleep(1.0)
        for foreign in (".venv", "__pycache__", "node_modules"):
            (tmp_path / foreign / "x.py").write_text("b = 1")
        (tmp_path / "notes.txt").write_text("not code")
        await asyncio.sleep(1.0)
        assert seen == []
        (tmp_path / "shop" / "tasks.py").write_text("a = 22")
        async with asyncio.timeout(10):
            while not seen:  # noqa: ASYNC110  # the iterator has no event
                await asyncio.sleep(0.02)
        assert seen == ["shop/tasks.py"]
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(main())


def test_an_app_below_the_current_folder_is_watched_with_all_that_is_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here / "shop", elsewhere / "lib"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise AssertionError('imported')")
    (elsewhere / "single.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(elsewhere)
    # The last one is an app that a framework's module makes: its project is here.
    specs = ("shop.tasks:app", "lib:app", "single:app", "winch.integrations.django.worker:make_app()")
    found: dict[str, Any] = {spec: reload.app_folder(spec, here) for spec in specs}
    assert list(found.values()) == [here, elsewhere / "lib", elsewhere, here]
