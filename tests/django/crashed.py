"""What Django gets from a real worker for tasks that end without their function: results and signals.

    python -m tests.django.crashed FOLDER

One task kills its process, one hangs until its timeout, one raises in a process of its own, and one
succeeds and notes its thread.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

SETTINGS = "tests.django.crashed_settings"


def main(folder: str) -> dict[str, Any]:
    os.environ["SHOP_FOLDER"] = folder
    os.environ["DJANGO_SETTINGS_MODULE"] = SETTINGS
    import django

    django.setup()
    from tests.django import crashed_tasks as tasks
    from winch.integrations.django.api import task_finished, task_started
    from winch.integrations.django.worker import make_app

    signals: list[tuple[str, str, str, int]] = []

    def receiver(name: str) -> Any:
        def note(task_result: Any, **_: Any) -> None:
            here = threading.get_ident()
            signals.append((name, task_result.task.name, str(task_result.status), here))

        return note

    started, finished = receiver("started"), receiver("finished")
    task_started.connect(started)
    task_finished.connect(finished)
    app = make_app()
    app.migrate()
    all_tasks = (tasks.dies, tasks.hangs, tasks.raises, tasks.works)
    results = {task.name: task.enqueue() for task in all_tasks}
    app.run_worker(queues=["default"], burst=True)
    until = time.monotonic() + 10
    while sum(kind == "finished" for kind, *_ in signals) < len(results) and time.monotonic() < until:
        time.sleep(0.01)
    for result in results.values():
        result.refresh()
    app.close()
    return {
        "results": {
            name: [str(result.status), [error.exception_class_path for error in result.errors]]
            for name, result in results.items()
        },
        # The signals of all processes.
        "ends": sorted((Path(folder) / "ends").read_text().splitlines()),
        # The last column: whether it was sent in the thread of the function.
        "signals": sorted((*signal, here in tasks.threads) for *signal, here in signals),
    }


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(*sys.argv[1:])))
