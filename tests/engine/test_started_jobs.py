"""The page of shared memory between child and supervisor."""

from __future__ import annotations

import os
import signal
import time

from winch.engine.worker.started_jobs import StartedJobs
from winch.storage.params import ClaimRef

JOB = "0192c8f0-0000-7000-8000-000000000001"
TOKEN = "1192c8f0-0000-4000-8000-00000000000f"


def test_the_file_of_a_killed_child_is_still_readable() -> None:
    board = StartedJobs.create(4)
    pid = os.fork()
    if pid == 0:
        child = StartedJobs(board.fd, 4)
        child.start(0, TOKEN, JOB, None)
        child.start(2, JOB, TOKEN, 12.5)
        child.free([0])
        child.start(1, TOKEN, TOKEN, None, is_here=False)
        child.start(3, JOB, JOB, 7.0)
        child.ended(3)
        child.pulse()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    [started] = board.started()
    assert (started.claim.id, started.claim.token, started.deadline) == (JOB, TOKEN, 12.5)
    assert board.kept() == {ClaimRef(JOB, TOKEN), ClaimRef(TOKEN, TOKEN), ClaimRef(JOB, JOB)}
    assert 0 <= time.monotonic() - board.last_pulse < 10
    board.close()
