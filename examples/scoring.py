"""ML scoring in batches: one call of the model for up to 64 jobs, each with an outcome of its own."""

from __future__ import annotations

from dataclasses import dataclass

from winch import App, Collected

app = App()
calls: list[int] = []


@dataclass
class Features:
    age: int
    clicks: int


def model(batch: list[Features]) -> list[float]:
    """Stands for one pass over the accelerator: as dear for one as for many."""
    calls.append(len(batch))
    return [min(1.0, one.clicks / max(1, one.age)) for one in batch]


@app.task(name="ml.score", queue="ml", collect=64, collect_wait="20ms")
def score(jobs: list[Collected[Features]]) -> None:
    good = []
    for job in jobs:
        if job.args.age < 0:
            job.discard("an age below zero")
        else:
            good.append(job)
    for job, result in zip(good, model([job.args for job in good]), strict=True):
        job.done(result)
