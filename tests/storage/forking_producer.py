"""A producer whose threads enqueue while its main thread forks, as a preloading web server does.

Takes the store's URL and the number of children. Writes one JSON object: how each child ended, which
errors the threads met, and whether each thread enqueued after the last fork.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings

from winch import App

THREADS, CHILD_SECONDS = 4, 10

warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
app = App(sys.argv[1])


@app.task(name="note")
def note() -> None: ...


def main() -> None:
    app.migrate()
    stored = [0] * THREADS
    errors: list[str] = []
    is_over = threading.Event()

    def produce(thread: int) -> None:
        while not is_over.is_set():
            try:
                note.enqueue()
                stored[thread] += 1
            except Exception as error:  # sent to the test
                errors.append(repr(error))
                time.sleep(0.01)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    children = [fork() for _ in range(int(sys.argv[2]))]
    before, deadline = list(stored), time.monotonic() + 10
    while any(map(int.__le__, stored, before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    is_over.set()
    for thread in threads:
        thread.join(10)
    go_on = [now > then for now, then in zip(stored, before, strict=True)]
    report = {"children": children, "errors": errors, "go_on": go_on, "stored": sum(stored)}
    sys.stdout.write(json.dumps(report))
    app.close()


def fork() -> tuple[int, str]:
    """The exit code of a child that enqueues one job, -14 when it hung; and the job's id."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_SECONDS)
        code = 1
        try:
            os.write(writing, note.enqueue().id.encode())
            code = 0
        except Exception as error:  # sent to the test
            os.write(2, f"{error!r}\n".encode())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        job = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), job


main()
