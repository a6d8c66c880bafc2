"""Tasks for crashed.py."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from winch.integrations.django import task
from winch.integrations.django.api import task_finished

threads: list[int] = []


def note_end(task_result: Any, **_: Any) -> None:
    """The worker and its isolated processes write into one file."""
    with (Path(os.environ["SHOP_FOLDER"]) / "ends").open("a") as file:
        file.write(f"{task_result.task.name} {task_result.status}\n")


task_finished.connect(note_end)


@task(isolate="process")
def dies() -> None:
    os._exit(3)


@task(isolate="process", timeout="300ms")
def hangs() -> None:
    time.sleep(60)


@task(isolate="process")
def raises() -> None:
    raise ValueError("here")


@task()
def works() -> str:
    threads.append(threading.get_ident())
    time.sleep(0.01)
    return "done"
