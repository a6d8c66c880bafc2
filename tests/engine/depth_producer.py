"""A producer of single jobs: a URL, and for how many seconds. It begins when its input has a line."""

from __future__ import annotations

import sys
import time

from winch import App, QueueFull


def answer(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(url: str, seconds: float) -> None:
    app = App(url)

    @app.task(name="t", queue="mail")
    def t() -> None: ...

    app.ready()
    answer("ready")
    sys.stdin.readline()
    stored = refused = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            t.enqueue()
            stored += 1
        except QueueFull:
            refused += 1
            time.sleep(0.002)
    app.close()
    answer(f"{stored} {refused}")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
