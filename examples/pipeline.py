"""An image and video pipeline: fetch, make the sizes side by side, then one job publishes.

Sizes are heavy, so two of a video are made at a time (isolate="process" would give each a process of its
own). A size that cannot be made is left out; a file that is not there stops its own pipeline only.
"""

from __future__ import annotations

from winch import App, Discard, flow
from winch.types import FlowHandle

app = App()
SIZES = (240, 480, 1080)
published: dict[str, list[str]] = {}


@app.task(name="media.fetch", queue="media")
def fetch(url: str) -> str:
    if "gone" in url:
        raise Discard(f"404: {url}")
    return f"file:{url.rpartition('/')[2]}"


@app.task(name="media.size", queue="media", timeout="10m")
def resize(file: str, height: int) -> str:
    if height > 1000 and "small" in file:
        raise Discard(f"{file} has no {height} lines")
    return f"{file}@{height}"


@app.task(name="media.publish", queue="media")
def publish(made: list[str | None], name: str) -> int:
    published[name] = [one for one in made if one is not None]
    return len(published[name])


def process(name: str, url: str) -> FlowHandle:
    pipeline = flow(f"media {name}")
    file = pipeline.add(fetch.bind(url))
    sizes = pipeline.add_many(
        [resize.partial(height=height) for height in SIZES], after=[file], parallel=2
    )
    pipeline.add(publish.partial(name=name), after=[sizes], on_failure="continue")
    return pipeline.enqueue()
