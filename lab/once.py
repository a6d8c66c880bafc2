"""One run from beginning to end: a store, load, faults, a verdict."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lab import load
from lab.results import Result
from lab.stores import CannotRun

if TYPE_CHECKING:
    from lab.faults.base import Fault
from lab.judge import judge
from lab.run import Run


def once(
    kinds: Sequence[type[Fault]],
    store: str,
    seed: int,
    *,
    seconds: float = load.SECONDS,
    logs: Path | None = None,
) -> Result:
    """Run these faults together on this store, and judge. `logs`: where to leave the logs and
    the lines of the processes of a failed run."""
    began = time.monotonic()
    words = {
        "store": store,
        "fault": "+".join(kind.name for kind in kinds),
        "title": ", and ".join(kind.title for kind in kinds),
        "seed": seed,
    }
    with tempfile.TemporaryDirectory(prefix="winch-lab-") as name:
        try:
            found = (
                kinds[0].play(seed)
                if kinds[0].is_virtual
                else _run(kinds, store, seed, Path(name), seconds, words)
            )
        except Exception as error:  # a run that broke is a failed run, with its reason
            reason = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
            kind = "cannot run here" if isinstance(error, CannotRun) else "broke off"
            found = Result(**words, is_ok=False, observed=kind, seconds=0, violations=(reason,))  # type: ignore[arg-type]
        if logs is not None and not found.is_ok:
            _leave(Path(name), logs / f"{found.fault}-{store}-{seed}")
    return msgspec.structs.replace(found, seconds=round(time.monotonic() - began, 1))


def _leave(folder: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        shutil.copy2(log, target)
    if (folder / "history").is_dir():
        shutil.copytree(folder / "history", target / "history", dirs_exist_ok=True)


def _run(
    kinds: Sequence[type[Fault]],
    store: str,
    seed: int,
    folder: Path,
    seconds: float,
    words: dict[str, object],
) -> Result:
    with ExitStack() as stack:
        make_store = next((k.store_class(store) for k in kinds if k.own_stores.get(store)), None)
        place = stack.enter_context((make_store or kinds[0].store_class(store))(folder))
        if any(kind.needs_proxy for kind in kinds):
            place.put_proxy()
        run = Run(place, folder, seed, seconds=seconds)
        stack.callback(run.close)
        run.prepare()
        faults = [kind(run, random.Random(f"{seed}/{kind.name}")) for kind in kinds]
        run.may_be_set_back = any("I12" in fault.waives(place.name) for fault in faults)
        for fault in faults:
            fault.prepare()
        run.begin()
        for fault in faults:
            fault.begin()
        _strike(run, faults)
        for fault in faults:
            fault.heal()
        run.heal()
        for fault in faults:
            fault.healed()
        windows = run.drain()
        for fault in faults:
            fault.drained()
        run.end_workers()
        return judge(run, faults, windows, words)


def _strike(run: Run, faults: Sequence[Fault]) -> None:
    """Let the faults act, each in a thread of its own, until the load's time is over."""
    errors: list[BaseException] = []

    def act(fault: Fault) -> None:
        try:
            while run.pause(*fault.every, fault.rng):
                fault.strike()
                fault.strikes += 1
        except BaseException as error:  # raised in the main thread
            errors.append(error)

    threads = [threading.Thread(target=act, args=(fault,)) for fault in faults]
    for thread in threads:
        thread.start()
    time.sleep(run.seconds)
    run.is_over.set()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
