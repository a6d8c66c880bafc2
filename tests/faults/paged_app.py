"""A workflow with a long history that starts over, in a process that kills itself at a chosen place.

    python -m tests.faults.paged_app

Reads lines "URL PLACE FILE" and answers "CODE PLACES", as workflow_app.py does. FILE gets a line for
every beginning of the handler, every run of a step and every result that the handler got.
"""

from __future__ import annotations

import secrets
import sys
from functools import partial
from pathlib import Path

import winch
from tests.faults import workflow_app as base

LIVES, STEPS = 3, 4
LONG = 9_000  # two such results are more than the head of a history holds


def made(file: Path, url: str) -> winch.App:
    app = winch.App(url)

    def write(*words: object) -> None:
        """A line that is there whatever becomes of this process."""
        with file.open("a") as lines:
            lines.write(" ".join(map(str, words)) + "\n")
        base.here()

    def make(life: int, n: int) -> str:
        nonce = secrets.token_hex(8)
        base.here()
        write("ran", life, n, nonce)
        return nonce + "x" * LONG

    # One kill costs no attempt; a failure of the handler itself would end the job, and the test.
    @app.task(name="walk", retry=winch.Retry.fixed("10ms", attempts=1))
    def walk(life: int, found: int = 0, *, ctx: winch.Context) -> int:
        write("began", life, found)
        for n in range(STEPS):
            text = ctx.step(make, life, n, name=f"{life}.{n}")
            write("got", life, n, text[:16])
            found += len(text)
        return found if life == LIVES else ctx.restart(life + 1, found=found)

    return app


if __name__ == "__main__":
    for line in sys.stdin:
        url, number, path = line.split()
        base.made = partial(made, Path(path))
        code, places = base.begun(url, int(number))
        sys.stdout.write(f"{code} {places}\n")
        sys.stdout.flush()
