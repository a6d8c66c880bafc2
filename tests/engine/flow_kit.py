"""Tasks that note what they do, for the tests of compositions and batches."""

from __future__ import annotations

from typing import Any

from winch import (
    App,
    Context,
    Retry,
)

ONCE = Retry.fixed("1s", attempts=1)


class Tasks:
    """Tasks that note what they do."""

    def __init__(self, app: App) -> None:
        self.did: list[str] = []

        @app.task(name="fetch")
        def fetch(url: str) -> str:
            self.did.append(f"fetch {url}")
            return f"<{url}>"

        @app.task(name="resize", retry=ONCE)
        def resize(data: str, width: int = 1) -> str:
            self.did.append(f"resize {data}")
            if width == 0:
                raise ValueError("no width")
            return f"{data}@{width}"

        @app.task(name="upload")
        def upload(data: str | None, bucket: str = "b") -> str:
            self.did.append(f"upload {data}")
            return f"{bucket}/{data}"

        @app.task(name="score", retry=ONCE)
        async def score(number: int) -> int:
            self.did.append(f"score {number}")
            if number < 0:
                raise ValueError("negative")
            return number * number

        @app.task(name="total")
        def total(numbers: list[int | None]) -> int:
            self.did.append("total")
            return sum(number or 0 for number in numbers)

        @app.task(name="notify")
        def notify(what: str) -> None:
            self.did.append(f"notified {what}")

        @app.task(name="grow")
        async def grow(number: int, *, ctx: Context) -> None:
            if number:
                await ctx.batch.aenqueue(grow.bind(number - 1), grow.bind(0))  # type: ignore[call-arg]
            self.did.append(f"grown {number}")

        self.fetch, self.resize, self.upload = fetch, resize, upload
        self.score, self.total, self.notify, self.grow = score, total, notify, grow


def notices(tasks: Tasks) -> list[str]:
    return sorted(line for line in tasks.did if line.startswith("notified"))


def callbacks(tasks: Tasks) -> dict[str, Any]:
    return {f"on_{kind}": tasks.notify.bind(kind) for kind in ("success", "complete", "death")}
