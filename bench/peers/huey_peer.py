"""Huey on Redis (blocking pop) or SQLite (full sync, the shortest sensible polling)."""

from __future__ import annotations

from typing import Any

import kit
from huey import RedisHuey, SqliteHuey

is_sqlite = kit.URL.startswith("sqlite")
if is_sqlite:
    app = SqliteHuey("bench", filename=kit.URL.removeprefix("sqlite:///"), fsync=True, results=False)
else:
    app = RedisHuey("bench", url=kit.URL, results=False)


@app.task(retries=3 if kit.FAILS else 0)
def job(n: int, sent: int, pad: str) -> None:
    kit.ran(n, sent)


class Huey(kit.Peer):
    def enqueue(self, n: int, sent: int) -> Any:
        return job(n, sent, kit.PAD)

    def pending(self) -> int:
        return app.pending_count()

    def work(self) -> None:
        # One thread: with more, the GIL (and on SQLite the write lock) makes it slower, not faster.
        consumer = app.create_consumer(
            workers=kit.SLOTS or 1,
            periodic=False,
            initial_delay=0.001 if is_sqlite else 0.1,
            max_delay=0.1,
        )
        consumer.run()


if __name__ == "__main__":
    kit.main(Huey())
