"""Moves under load: each of the six pairs, with kill -9 of the mover, a worker and a producer.

    python -m lab.move                          all six pairs
    python -m lab.move --pair sqlite:postgres   one
    python -m lab.move --pair sqlite:postgres --back   begin, and take it back, with kills, too

Producers store plain jobs, members of FIFO keys, jobs with unique keys and given ids, and delayed ones.
A schedule ticks every second, and its jobs must not overlap. Handlers note every start and every end.
Then everything that was acknowledged must have ended in one of the two stores, once; the members of a
key in their order; each window once.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from lab.stores import STORES
from winch import App
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.engine.moving.carrying import LIVE, jobs_of
from winch.engine.moving.route import ALL
from winch.storage.decide.schedules import WINDOW_HEADER
from winch.storage.protocol import Driver

PAIRS = (
    ("sqlite", "postgres"),
    ("postgres", "redis"),
    ("redis", "redis+cluster"),
    ("redis+cluster", "redis"),
    ("redis", "postgres"),
    ("postgres", "sqlite"),
)
AIM_MS = 200
BACKLOG = 400
END = 120.0
FINAL = tuple(state for state in JobState if state.is_final)

TASKS = """
    import os, time
    from pathlib import Path
    from winch import App, Context, Limit

    app = App(lease="3s", heartbeat="500ms", sweep="500ms", poll="200ms")
    FOLDER = Path(__file__).parent / "effects"

    def note(*words) -> None:
        with (FOLDER / str(os.getpid())).open("a") as file:
            file.write(" ".join(map(str, words)) + "\\n")

    def ran(ctx, key, n, seconds=0.004) -> None:
        note("start", ctx.job_id, ctx.fence, time.monotonic_ns(), key, n)
        time.sleep(seconds)
        note("end", ctx.job_id, ctx.fence, time.monotonic_ns(), key, n)

    @app.task(name="lab.plain")
    def plain(n: int, *, ctx: Context) -> None:
        ran(ctx, "-", n)

    @app.task(name="lab.member")
    def member(key: str, n: int, *, ctx: Context) -> None:
        ran(ctx, key, n)

    @app.task(name="lab.one", limit=Limit(1))
    def one(n: int, *, ctx: Context) -> None:
        ran(ctx, "limit", n)

    @app.task(name="lab.tick")
    def tick(*, ctx: Context) -> None:
        ran(ctx, "tick", 0, 1.2)
"""

PRODUCER = """
    import random, sys, time
    from uuid import UUID
    from tasks import app, plain, member, one, FOLDER

    me, seed = sys.argv[1], int(sys.argv[2])
    rng = random.Random(seed)
    acked = (FOLDER.parent / f"acked-{me}").open("a", buffering=1)
    gaps = (FOLDER.parent / f"gaps-{me}").open("a", buffering=1)
    n = 0
    while not (FOLDER.parent / "stop").exists():
        n += 1
        began = time.monotonic()
        kind = rng.randrange(6)
        key = f"{me}-{rng.randrange(3)}"
        if kind == 0:
            job = member.using(fifo=key).enqueue(key, n)
        elif kind == 1:
            job = plain.using(unique=f"{me}-{rng.randrange(5)}").enqueue(n)
        elif kind == 2:
            given = str(UUID(int=rng.getrandbits(128), version=4))
            job = plain.using(id=given).enqueue(n)
            again = plain.using(id=given).enqueue(n)
            assert again.id == job.id
        elif kind == 3:
            job = plain.using(delay="1500ms").enqueue(n)
        elif kind == 4:
            job = one.enqueue(n)
        else:
            job = plain.enqueue(n)
        took = time.monotonic() - began
        acked.write(f"{job.id} {int(job.is_new)}\\n")
        if n > 1:  # the first one opens the connections, whatever is under way
            gaps.write(f"{began:.3f} {took * 1000 / (2 if kind == 2 else 1):.1f}\\n")
        time.sleep(0.005)
"""


@dataclass
class Run:
    """One run of a handler."""

    job: str
    fence: str
    pid: int
    started: int
    key: str
    n: int
    ended: int | None = None


@dataclass
class Lab:
    """Two stores, the processes at work on them, and what they have noted."""

    folder: Path
    urls: tuple[str, str]
    rng: random.Random
    killed: set[int] = field(default_factory=set)
    began: float = 0.0
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def env(self, url: str, move_to: str | None) -> dict[str, str]:
        env = {**os.environ, "WINCH_URL": url, "PYTHONPATH": f"{self.folder}:{Path.cwd()}"}
        env.pop("WINCH_MOVE_TO", None)
        return env if move_to is None else {**env, "WINCH_MOVE_TO": move_to}

    def spawn(self, words: Sequence[str], *, at: int = 0) -> subprocess.Popen[bytes]:
        """A process of ours, at the source (which knows the target) or at the target."""
        env = self.env(self.urls[at], self.urls[1] if at == 0 else None)
        log = (self.folder / "log").open("ab")
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=self.folder,
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def worker(self, at: int) -> subprocess.Popen[bytes]:
        return self.spawn(["-m", "winch", "worker", "-A", "tasks:app", "-Q", "*", "-c", "4"], at=at)

    def producer(self, name: str) -> subprocess.Popen[bytes]:
        return self.spawn(["producer.py", name, str(self.rng.randrange(1 << 30))])

    def mover(self, *words: str) -> subprocess.Popen[bytes]:
        return self.spawn(["-m", "winch", "move", "--to", self.urls[1], "--yes", *words])

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """kill -9 for the process and all its children at once."""
        self.killed |= _family(process.pid)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _family(pid: int) -> set[int]:
    import psutil

    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.NoSuchProcess:
        return {pid}


def drivers(lab: Lab) -> tuple[Driver, Driver]:
    apps = [App(url) for url in lab.urls]
    for app in apps:
        app.migrate()
    return apps[0].ready(), apps[1].ready()


def live(lab: Lab) -> tuple[Driver, Driver]:
    """A move under load from the first store to the second one, up to the cut-over."""
    source, target = drivers(lab)
    lab.spawn(["fill.py", str(BACKLOG)]).wait()
    workers = [lab.worker(0), lab.worker(1)]
    producers = [lab.producer("a"), lab.producer("b")]
    time.sleep(4.0)
    lab.began = time.monotonic()
    mover = lab.mover()
    kills = 0
    deadline = time.monotonic() + END
    while True:
        # Later and later, so that each step of the move meets a kill now and then.
        pause = lab.rng.uniform(0.3, 1.2 + kills)
        try:
            code = mover.wait(pause)
        except subprocess.TimeoutExpired:
            code = None
        if code == 0:
            break
        if time.monotonic() > deadline:
            raise SystemExit(f"the move did not end: {(lab.folder / 'log').read_text()[-3000:]}")
        if code is None and kills < 3:
            lab.kill(mover)
            kills += 1
            if kills == 1:
                lab.kill(workers[0])
                workers[0] = lab.worker(0)
            if kills == 2:
                lab.kill(producers[0])
                producers[0] = lab.producer("c")
            if kills == 3:
                lab.kill(workers[1])
                workers[1] = lab.worker(1)
            mover = lab.mover("--resume") if _is_under_way(source) else lab.mover()
        elif code is not None:
            mover = lab.mover("--resume") if _is_under_way(source) else lab.mover()
    print(f"  mover killed {kills} times, two workers and a producer once each")
    return source, target


def _is_under_way(source: Driver) -> bool:
    from winch.engine.moving.mover import Mover

    return Mover(source, source).route() is not None


def take_back(lab: Lab, source: Driver) -> None:
    """Take the move back, with kill -9 of the mover, too."""
    kills = 0
    deadline = time.monotonic() + END
    while _is_under_way(source):
        if time.monotonic() > deadline:
            raise SystemExit(f"the way back did not end: {(lab.folder / 'log').read_text()[-3000:]}")
        mover = lab.mover("--back")
        try:
            mover.wait(lab.rng.uniform(0.5, 2.5 + kills) if kills < 3 else END)
        except subprocess.TimeoutExpired:
            lab.kill(mover)
            kills += 1
    print(f"  mover of the way back killed {kills} times")


def finish(lab: Lab, source: Driver, *, back: bool) -> None:
    """Take the move back, or end it; then let all jobs end."""
    if back:
        time.sleep(1.0)
        take_back(lab, source)
    time.sleep(1.0)
    (lab.folder / "stop").touch()
    time.sleep(0.5)
    if not back:
        code = -1
        for _ in range(50):
            code = lab.mover("--cutover").wait(END)
            if code == 0:
                break
            assert lab.mover("--resume").wait(END) == 0
        assert code == 0, (lab.folder / "log").read_text()[-3000:]


def drained(stores: tuple[Driver, Driver], deadline: float) -> None:
    while time.monotonic() < deadline:
        if not any(True for store in stores for job in jobs_of(store, ALL, LIVE)):
            return
        time.sleep(0.5)
    left = [job for store in stores for job in jobs_of(store, ALL, LIVE)]
    raise SystemExit(f"{len(left)} jobs are still live, such as {left[:3]}")


# -- judging ----------------------------------------------------------------------------------------


def runs_of(folder: Path) -> Iterator[Run]:
    for file in (folder / "effects").iterdir():
        open_runs: dict[tuple[str, str], Run] = {}
        for line in file.read_text().splitlines():
            what, job, fence, at, key, n = line.split()
            if what == "start":
                run = open_runs[job, fence] = Run(job, fence, int(file.name), int(at), key, int(n))
                yield run
            else:
                open_runs[job, fence].ended = int(at)


def judge(lab: Lab, stores: tuple[Driver, Driver]) -> list[str]:
    """What went wrong."""
    found: list[str] = []
    records: list[dict[str, JobRecord]] = [
        {job.id: job for job in jobs_of(s, ALL, FINAL)} for s in stores
    ]
    both = set(records[0]) & set(records[1])
    if both:
        found.append(f"{len(both)} jobs are in both stores, such as {min(both)}")
    acked: dict[str, bool] = {}
    for file in lab.folder.glob("acked-*"):
        for line in file.read_text().splitlines():
            job, is_new = line.split()
            acked[job] = is_new == "1" or acked.get(job, False)
    there = set(records[0]) | set(records[1])
    if lost := set(acked) - there:
        found.append(f"{len(lost)} acknowledged jobs are lost, such as {min(lost)}")
    not_done = [r for store in records for r in store.values() if r.state is not JobState.COMPLETED]
    if not_done:
        found.append(f"{len(not_done)} jobs did not complete, such as {not_done[0]}")
    runs = list(runs_of(lab.folder))
    ends = Counter(run.job for run in runs if run.ended is not None and run.pid not in lab.killed)
    if doubled := [job for job, count in ends.items() if count > 1]:
        found.append(f"{len(doubled)} jobs ran twice, such as {doubled[0]}")
    if missing := there - {run.job for run in runs}:
        found.append(f"{len(missing)} jobs are completed and never ran, such as {min(missing)}")
    found += list(_order(lab, runs))
    windows = Counter(
        job.headers[WINDOW_HEADER]
        for store in records
        for job in store.values()
        if WINDOW_HEADER in job.headers
    )
    if twice := [window for window, count in windows.items() if count > 1]:
        found.append(f"windows with two jobs: {twice[:3]}")
    if not windows:
        found.append("the schedule never ticked")
    waits = [
        (float(at) < lab.began, float(ms))
        for file in lab.folder.glob("gaps-*")
        for at, ms in (line.split() for line in file.read_text().splitlines())
    ]
    before = [ms for is_before, ms in waits if is_before]
    gaps = [ms for is_before, ms in waits if not is_before]
    print(
        f"  {len(acked)} acknowledged, {len(there)} ended ({len(records[0])} in the source, "
        f"{len(records[1])} in the target), {len(windows)} windows; lost "
        f"{len(set(acked) - there)}, doubled {len(doubled) + len(both)}"
    )
    above = sum(gap > AIM_MS for gap in gaps)
    print(
        f"  longest waits of producers: {_longest(gaps)} ms; {above} of {len(gaps)} above {AIM_MS}; "
        f"before the move: {_longest(before)} ms, of {len(before)}"
    )
    return found


def _longest(gaps: Sequence[float]) -> str:
    return ", ".join(f"{gap:.0f}" for gap in sorted(gaps)[:-6:-1])


def _order(lab: Lab, runs: Sequence[Run]) -> Iterator[str]:
    """Members of a key one after the other, in order; no two jobs of the limit at once, nor of the
    schedule."""
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.key != "-":
            by_key[run.key].append(run)
    for key, some in by_key.items():
        some.sort(key=lambda run: run.started)
        for first, second in pairwise(some):
            is_cut = first.ended is None or first.pid in lab.killed
            if key != "limit" and second.n < first.n:
                yield f"key {key}: member {second.n} began after {first.n}"
            if not is_cut and first.ended is not None and first.ended > second.started:
                yield f"key {key}: {second.n} began while {first.n} ran"


def one_pair(pair: tuple[str, str], seed: int, *, back: bool) -> list[str]:
    print(f"{pair[0]} -> {pair[1]}{' and back' if back else ''}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="winch-move-")))
        (folder / "effects").mkdir()
        (folder / "tasks.py").write_text(textwrap.dedent(TASKS))
        (folder / "producer.py").write_text(textwrap.dedent(PRODUCER))
        (folder / "fill.py").write_text(textwrap.dedent(FILL))
        urls = []
        for name in pair:
            place = folder / name.replace("+", "-")
            place.mkdir(exist_ok=True)
            urls.append(stack.enter_context(STORES[name](place)).url)
        lab = Lab(folder, (urls[0], urls[1]), random.Random(seed))
        stack.callback(lab.stop)
        stores = live(lab)
        finish(lab, stores[0], back=back)
        drained(stores, time.monotonic() + END)
        found = judge(lab, stores)
        for line in (folder / "log").read_text().splitlines():
            if line.startswith("open:"):
                print(f"  {line}")
        if found:
            print((folder / "log").read_text()[-4000:])
        for store in stores:
            store.close()
    return found


FILL = """
    import sys
    from tasks import app, plain, member

    app.schedules.add("every-second", task="lab.tick", every="1s", overlap="skip", priority="critical")
    for n in range(int(sys.argv[1])):
        plain.enqueue(n)
        if n % 4 == 0:
            member.using(fifo=f"fill-{n % 12}").enqueue(f"fill-{n % 12}", n)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", help="one pair, as sqlite:postgres")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--back", action="store_true", help="take the move back instead of ending it")
    given = parser.parse_args()
    pairs = PAIRS if given.pair is None else [tuple(given.pair.split(":"))]
    bad = 0
    for pair in pairs:
        for line in (found := one_pair(pair, given.seed, back=given.back)):
            print(f"  WRONG: {line}")
        bad += bool(found)
    print(f"{len(pairs) - bad} of {len(pairs)} pairs as they should be")
    raise SystemExit(bad)


if __name__ == "__main__":
    main()
