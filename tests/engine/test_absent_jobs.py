"""An id or alias that no job has: the error names it as the caller gave it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from winch import App, JobNotFound


@pytest.mark.parametrize(
    "use",
    [
        lambda app, job_id: app.jobs.get(job_id),
        lambda app, job_id: app.jobs.cancel(job_id),
        lambda app, job_id: app.jobs.retry(job_id),
        lambda app, job_id: app.jobs.delete(job_id),
        lambda app, job_id: app.client.why(job_id),
    ],
)
@pytest.mark.parametrize("job_id", ["x", "", "7" * 1000, "01890000-0000-7000-8000-000000000000"])
def test_an_id_that_no_job_has(use: Callable[[App, str], object], job_id: str) -> None:
    with pytest.raises(JobNotFound) as caught:
        use(App("memory://"), job_id)
    assert caught.value.job_id == job_id[:100]
