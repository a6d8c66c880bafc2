"""What outlives a process, and what several processes do with one store at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from winch.core.lifecycle import JobState
from winch.testing.conformance.bench import Bench
from winch.testing.conformance.case import case

PEER_SECONDS = 60.0


def peer_command(bench: Bench, *words: str) -> Sequence[str]:
    address = bench.target.address()
    module = "winch.testing.conformance.peer"
    return [sys.executable, "-m", module, address.url, address.schema or "", *words]


def start_peer(bench: Bench, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(peer_command(bench, *words), stdout=subprocess.PIPE, text=True)


def answer_of(peer: subprocess.Popen[str]) -> list[str]:
    text, _ = peer.communicate(timeout=PEER_SECONDS)
    assert peer.returncode == 0
    return msgspec.json.decode(text, type=list[str])


@case(needs="is_durable")
def what_was_stored_is_there_after_everybody_left(bench: Bench) -> None:
    made = [bench.make_job(state) for state in (JobState.READY, JobState.RUNNING, JobState.COMPLETED)]
    bench.driver.close()
    bench.run(bench.driver.aclose())
    later = bench.target.another()
    try:
        assert later.run(later.get([job.id for job in made])) == made
    finally:
        later.close()


@case(needs="shares_processes")
def a_job_of_another_process_is_seen_and_taken(bench: Bench) -> None:
    bench.now = None
    (job_id,) = answer_of(start_peer(bench, "enqueue", "1"))
    assert bench.take().id == job_id


@case(needs="shares_processes")
def two_processes_never_take_one_job(bench: Bench) -> None:
    bench.now = None
    ids = bench.add_many(200)
    session = bench.session
    peer = start_peer(bench, "drain", "7")
    mine: list[str] = []
    while peer.poll() is None:
        mine += [claim.id for claim in bench.claim(session=session, limit=3)]
    theirs = answer_of(peer)
    mine += [claim.id for claim in bench.claim(session=session, limit=200)]
    assert len(mine) + len(theirs) == 200
    assert set(mine) | set(theirs) == set(ids)


@case(needs="shares_processes")
async def a_job_of_another_process_rings(bench: Bench) -> None:
    bench.now = None
    bell = bench.driver.bell(["default"])
    try:
        await bell.arm()
        peer = await asyncio.to_thread(start_peer, bench, "enqueue", "1")
        for _ in range(40):  # the waiter announces itself repeatedly, as a worker does
            if await bell.wait(1.0):
                break
            await bell.arm()
        else:
            raise AssertionError("no ring for the job of another process")
        await asyncio.to_thread(answer_of, peer)
    finally:
        await bell.aclose()
