"""`max_depth` with many producers: processes of their own, no lock among them, and little overshoot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from winch import App, QueueFull
from winch.engine.client.backpressure import SHARE

pytestmark = pytest.mark.servers

PRODUCERS = 8
LIMIT = 100


def test_eight_producers_of_single_jobs_overshoot_by_a_fifth_at_most(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = store_url
    app = App(url)
    app.ready()
    app.queues.configure("mail", max_depth=LIMIT)
    producers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.engine.depth_producer", url, "2.5"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PRODUCERS)
    ]
    try:
        for one in producers:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in producers:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        counts = [tuple(map(int, one.communicate(timeout=60)[0].split())) for one in producers]
    finally:
        for one in producers:
            one.kill()
            one.wait()
    depth = app.driver.run(app.driver.depth("mail", cap=10 * LIMIT))
    app.close()
    with capsys.disabled():
        sys.stdout.write(f"\n  max_depth {LIMIT}, {PRODUCERS} producers: {depth.ready} ready\n")
    assert sum(stored for stored, _ in counts) == depth.ready
    assert all(refused for _, refused in counts)
    assert LIMIT <= depth.ready <= 1.2 * LIMIT


def test_a_producer_far_from_the_limit_reads_the_depth_once_in_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(f"sqlite:///{tmp_path}/winch.db")

    @app.task(name="t", queue="mail")
    def t() -> None: ...

    app.queues.configure("mail", max_depth=100 * SHARE)
    monkeypatch.setattr(app.client.writer.admission, "monotonic", lambda: 1000.0)  # no second is over
    reads = 0
    real = app.driver.run

    def run(verb: object) -> object:
        nonlocal reads
        reads += getattr(verb, "name", "") == "depth"
        return real(verb)  # type: ignore[arg-type]

    monkeypatch.setattr(app.driver, "run", run)
    for _ in range(1000):
        t.enqueue()
    assert reads == 10
    app.enqueue_many([t.bind()] * (100 * SHARE - 1000))
    with pytest.raises(QueueFull, match=r"4,000 jobs are ready, max_depth is 4,000"):
        t.enqueue()
    app.close()
