"""Before a deploy: does the new code read what is queued?"""

from __future__ import annotations

from tests.engine.test_hooks import store_raw
from tests.engine.test_worker import new_app


def test_jobs_that_the_new_code_cannot_run_are_found_and_grouped() -> None:
    app = new_app()

    @app.task(name="mail", version=2)
    def mail(to: str) -> None: ...

    @mail.upgrade(from_version=1)
    def from_1(args: dict[str, str]) -> dict[str, str]:
        return {"to": args["address"]}

    mail.enqueue("a")
    store_raw(app, task="mail", args='{"address":"a"}', version=1)
    for _ in range(3):
        store_raw(app, task="mail", args='{"addr":"a"}', version=1)
    store_raw(app, task="mail", args='{"to":1}', version=2)
    store_raw(app, task="mail", args="{}", version=3)
    store_raw(app, task="gone", args="{}")
    seen = app.preflight()
    assert seen.read == 8
    assert [(m.task, m.version, m.count, m.problem) for m in seen.misfits] == [
        ("mail", 1, 3, "its upgrader failed: KeyError: 'address'"),
        ("gone", 1, 1, "this code has no such task; the jobs would wait"),
        ("mail", 3, 1, "this code has version 2; the jobs would wait"),
        ("mail", 2, 1, "mail: argument 'to': expected str, got int"),
    ]


def test_preflight_finds_nothing_if_every_job_can_be_read() -> None:
    app = new_app()

    @app.task(name="t")
    def task(n: int) -> None: ...

    app.enqueue_many(task.bind(n) for n in range(1200))
    seen = app.preflight()
    assert (seen.read, seen.misfits) == (1200, ())
