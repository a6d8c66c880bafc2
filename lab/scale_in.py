"""A simulated scaler removes workers under load: 20 become 5, no attempt is lost, no job runs twice.

    python -m lab.scale_in --store postgres --workers 20 --to 5
    python -m lab.scale_in --plain          the same without deletion costs and drains: jobs run twice

Each worker stands for a pod. It writes its deletion cost to a stand-in of the Kubernetes API, under the
rule of the chart's role. The scaler lowers the number of replicas in steps and removes the pods with the
lowest cost, as a ReplicaSet does. What the kubelet does follows: the preStop, which drains the worker;
then SIGTERM; then SIGKILL when the time is over. Handlers note every start and every end.

Some jobs run longer than the grace period, so that a stop without a drain would interrupt them.
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
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from lab.stores import STORES
from tests.web.helm import Chart
from tests.web.kubernetes import KubernetesStandIn
from winch import App

GRACE = 3.0
DRAIN = 60.0
STEP_EVERY = 4.0
SHORTEST, LONGEST = 0.1, 6.0
SLOTS = 2
# So much of the slots is in use.
LOAD = 0.7
CHART = Path(__file__).parents[1] / "deploy/helm/winch"

TASKS = """
    import os, time
    from pathlib import Path
    from winch import App, Context

    app = App(lease="15s", heartbeat="1s", sweep="1s", poll="500ms")
    FOLDER = Path(__file__).parent / "effects"

    def note(line: str) -> None:
        with (FOLDER / str(os.getpid())).open("a") as file:
            file.write(line + "\\n")

    @app.task(name="shop.work", timeout="2m")
    def work(ctx: Context, seconds: float) -> None:
        note(f"start {ctx.job_id}")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.02)
        note(f"end {ctx.job_id}")
"""


@dataclass
class Pod:
    """A worker as a scaler sees it."""

    name: str
    process: subprocess.Popen[bytes]
    removing: threading.Thread | None = None
    is_drained: bool = False
    is_killed: bool = False

    @property
    def pids(self) -> set[int]:
        """The processes of the worker's children."""
        try:
            return {child.pid for child in psutil.Process(self.process.pid).children()}
        except psutil.NoSuchProcess:
            return set()


class ScaleIn:
    """One run on one store."""

    def __init__(self, url: str, folder: Path, *, is_plain: bool, rng: random.Random) -> None:
        self.url, self.folder, self.is_plain, self._rng = url, folder, is_plain, rng
        (folder / "effects").mkdir()
        (folder / "shop.py").write_text(textwrap.dedent(TASKS))
        self.app = App(url)
        self.app.driver.migrate()

        @self.app.task(name="shop.work", timeout="2m")
        def work(seconds: float) -> None: ...

        self._work = work
        self.pods: list[Pod] = []
        self.sent = 0
        self.replicas = 1
        self.busy_when_chosen = 0
        self._enough = threading.Event()

    # -- the parts ---------------------------------------------------------------------------------

    def start_pods(self, number: int, cluster: KubernetesStandIn) -> None:
        for index in range(number):
            name = f"shop-{index:02}"
            flags = [] if self.is_plain else ["--report-busy", f"kubernetes:{cluster.folder}"]
            command = [sys.executable, "-m", "winch", "worker", "-A", "shop:app", "-c", str(SLOTS)]
            with (self.folder / f"{name}.log").open("wb") as log:
                process = subprocess.Popen(
                    [*command, "--grace", f"{GRACE:g}s", *flags],
                    cwd=self.folder,
                    env=self._env() | cluster.env | {"POD_NAME": name},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            self.pods.append(Pod(name, process))
        self.replicas = number
        end = time.monotonic() + 120
        while len(self.app.workers.list()) < number:
            if time.monotonic() > end:
                raise RuntimeError(f"{len(self.app.workers.list())} of {number} workers have started")
            time.sleep(0.5)

    def produce(self) -> None:
        mean = (SHORTEST + LONGEST) / 2
        while not self._enough.wait(mean / (LOAD * SLOTS * self.replicas)):
            self._work.enqueue(self._rng.uniform(SHORTEST, LONGEST))
            self.sent += 1

    def remove(self, pod: Pod) -> None:
        """What the kubelet does to a pod."""
        if not self.is_plain:
            names = [one.worker for one in self.app.workers.list() if one.pid in pod.pids]
            command = ["-m", "winch", "workers", "drain", *names, "--until-ended", f"{DRAIN:g}s"]
            done = subprocess.run(
                [sys.executable, *command],
                cwd=self.folder,
                env=self._env(),
                capture_output=True,
                text=True,
                check=False,
            )
            pod.is_drained = done.returncode == 0
            if not pod.is_drained:
                sys.stderr.write(f"{pod.name}: {done.stdout}{done.stderr}")
        if pod.process.poll() is None:
            pod.process.send_signal(signal.SIGTERM)
        try:
            pod.process.wait(GRACE + 10)
        except subprocess.TimeoutExpired:
            pod.is_killed = True
            pod.process.kill()
            pod.process.wait()

    def scale(self, to: int, step: int, cluster: KubernetesStandIn) -> None:
        """Lower the number of replicas in steps; the cheapest pods go first."""
        there = list(self.pods)
        while len(there) > to:
            if self.is_plain:
                self._rng.shuffle(there)
            else:
                there.sort(key=lambda pod: cluster.cost(pod.name) or 0)
            number = min(step, len(there) - to)
            running = {one.pid: one.running for one in self.app.workers.list()}
            for pod in there[:number]:
                self.busy_when_chosen += any(running.get(pid) for pid in pod.pids)
                pod.removing = threading.Thread(target=self.remove, args=(pod,))
                pod.removing.start()
            there = there[number:]
            self.replicas = len(there)
            time.sleep(STEP_EVERY)
        for pod in self.pods:
            if pod.removing is not None:
                pod.removing.join()

    def _env(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("WINCH_")}
        return env | {"WINCH_URL": self.url, "PYTHONDONTWRITEBYTECODE": "1"}

    # -- the run and its verdict -------------------------------------------------------------------

    def run(self, workers: int, to: int, cluster: KubernetesStandIn) -> bool:
        producing = threading.Thread(target=self.produce)
        try:
            self.start_pods(workers, cluster)
            producing.start()
            time.sleep(STEP_EVERY)
            self.scale(to, max((workers - to) // 3, 1), cluster)
        finally:
            self._enough.set()
            if producing.ident is not None:
                producing.join()
        try:
            self._await_end()
            return self._judge(workers, to)
        finally:
            for pod in self.pods:
                if pod.process.poll() is None:
                    pod.process.terminate()
            for pod in self.pods:
                pod.process.wait(60)
            self.app.close()

    def _await_end(self) -> None:
        end = time.monotonic() + 180
        while any(sum(queue.counts.values()) for queue in self.app.queues.list()):
            if time.monotonic() > end:
                raise RuntimeError("jobs do not end")
            time.sleep(0.5)

    def _judge(self, workers: int, to: int) -> bool:
        starts: Counter[str] = Counter()
        ends: Counter[str] = Counter()
        for file in (self.folder / "effects").iterdir():
            for line in file.read_text().splitlines():
                kind, job = line.split()
                (starts if kind == "start" else ends)[job] += 1
        lost = sum((starts - ends).values())
        twice = sum(number > 1 for number in starts.values())
        missing = self.sent - len(ends)
        removed = [pod for pod in self.pods if pod.removing is not None]
        sys.stdout.write(
            f"scale-in {workers} -> {to} workers{' without drains' if self.is_plain else ''}: "
            f"{len(removed)} removed, {self.busy_when_chosen} of them busy when chosen, "
            f"{sum(pod.is_drained for pod in removed)} drained, "
            f"kills {sum(pod.is_killed for pod in removed)}; {self.sent} jobs, {missing} not run, "
            f"attempts lost {lost}, jobs run twice {twice}\n"
        )
        return not (lost or twice or missing)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.scale_in",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", default="postgres", choices=list(STORES))
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--to", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="without deletion costs and drains")
    given = parser.parse_args(argv)
    values = Chart(CHART).values
    values["deletionCost"]["enabled"] = values["serviceAccount"]["create"] = True
    [role] = [one for one in Chart(CHART).documents(values) if one["kind"] == "Role"]
    names = [f"shop-{index:02}" for index in range(given.workers)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="winch-scale-in-")))
        (folder / "store").mkdir()
        (folder / "run").mkdir()
        store = stack.enter_context(STORES[given.store](folder / "store"))
        cluster = stack.enter_context(KubernetesStandIn(folder / "account", names, role["rules"]))
        run = ScaleIn(
            store.worker_url, folder / "run", is_plain=given.plain, rng=random.Random(given.seed)
        )
        is_good = run.run(given.workers, given.to, cluster)
        refused = {status for _, _, status, _ in cluster.log if status != 200}
        sys.stdout.write(
            f"deletion costs: {len(cluster.log)} writes, refused {sorted(refused) or 'none'}\n"
        )
    return 0 if is_good and not refused else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
