"""Workers report how many jobs they run: to a stand-in of the Kubernetes API, a file and an address."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.engine.worker_kit import Shop, until, worker_process
from tests.web.helm import Chart, TemplateError
from tests.web.kubernetes import KubernetesStandIn
from winch import ConfigError, JobState
from winch.engine.observe.busy_report import REPORT_EVERY, BusyReport, sender

CHART = Chart(Path(__file__).parents[2] / "deploy/helm/winch")


def values(**account: Any) -> dict[str, Any]:
    made = CHART.values
    made["deletionCost"]["enabled"] = True
    made["serviceAccount"] |= account
    made["workers"][0]["drainSeconds"] = 600
    return made


def documents(**account: Any) -> dict[str, Any]:
    made = CHART.documents(values(**account))
    return {one["kind"]: one for one in made if "web" not in str(one["metadata"])}


def test_the_chart_lets_workers_patch_pods_and_drains_before_a_stop() -> None:
    made = documents(create=True)
    assert made["Role"]["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    binding = made["RoleBinding"]
    assert binding["roleRef"]["name"] == made["Role"]["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "shop", "namespace": "prod"}]
    pod = made["Deployment"]["spec"]["template"]["spec"]
    [box] = pod["containers"]
    assert pod["serviceAccountName"] == "shop"
    assert pod["automountServiceAccountToken"] is True
    assert pod["terminationGracePeriodSeconds"] == 600 + 30 + 10
    assert box["args"][-2:] == ["--report-busy", "kubernetes"]
    assert box["env"][-1]["name"] == "POD_NAME"
    assert box["lifecycle"]["preStop"]["exec"]["command"] == [
        "winch", "workers", "drain", "--here", "--until-ended", "600s"
    ]  # fmt: skip
    with pytest.raises(TemplateError, match="deletionCost needs a service account of its own"):
        documents(create=False)
    assert "Role" not in {one["kind"] for one in CHART.documents(CHART.values)}


def test_a_worker_writes_its_deletion_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = documents(create=True)["Role"]["rules"]
    shop = Shop(f"sqlite:///{tmp_path}/winch.db")
    with KubernetesStandIn(tmp_path / "account", ["shop-1"], rules) as cluster:
        for name, text in {**cluster.env, "POD_NAME": "shop-1"}.items():
            monkeypatch.setenv(name, text)
        place = f"kubernetes:{cluster.folder}"
        with worker_process(shop.app.settings.url, tmp_path, "--report-busy", place):
            until(lambda: cluster.cost("shop-1") == 0, "the cost of an idle worker")
            held = [shop.hold.enqueue("go") for _ in range(3)]
            until(lambda: all(one.refresh().state is JobState.RUNNING for one in held), "running jobs")
            until(lambda: (cluster.cost("shop-1") or 0) > 0, "the cost of a busy worker")
            cluster.rotate("second-token")
            (tmp_path / "go").touch()
            until(lambda: cluster.cost("shop-1") == 0, "the cost of an idle worker again")
            assert [one.result(timeout="10s") for one in held] == ["go"] * 3
        assert {status for _, _, status, _ in cluster.log} <= {200, 401}
    shop.app.close()


def test_a_refusal_by_the_kubernetes_api_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="works in a pod"):
        sender(f"kubernetes:{tmp_path}")
    with KubernetesStandIn(tmp_path / "account", ["shop-1"], []) as cluster:
        for name, text in cluster.env.items():
            monkeypatch.setenv(name, text)
        monkeypatch.setenv("POD_NAME", "shop-1")
        send = sender(f"kubernetes:{cluster.folder}")
        with pytest.raises(OSError, match=r"403 Forbidden.*cannot patch"):
            send(1)
        cluster.rules = documents(create=True)["Role"]["rules"]
        send(7)
        assert cluster.cost("shop-1") == 7
        monkeypatch.setenv("POD_NAME", "other")
        with pytest.raises(OSError, match="404"):
            sender(f"kubernetes:{cluster.folder}")(1)
        # Another cluster's certificate is not trusted.
        (tmp_path / "foreign").mkdir()
        with KubernetesStandIn(tmp_path / "foreign", ["shop-1"], []) as foreign:
            (cluster.folder / "ca.crt").write_bytes((foreign.folder / "ca.crt").read_bytes())
        with pytest.raises(OSError, match="certificate verify failed"):
            send(1)


def test_a_file_and_an_address_get_the_number(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="in a folder that exists"):
        sender(str(tmp_path / "nowhere" / "busy"))
    sender(str(tmp_path / "busy"))(3)
    assert (tmp_path / "busy").read_text() == "3\n"
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name that http.server looks for
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...  # its name there

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        sender(f"http://127.0.0.1:{server.server_address[1]}/busy?pool=a")(4)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert [one["running"] for one in got] == [4]


def test_the_edges_are_reported_at_once_and_other_changes_seldom() -> None:
    async def body() -> None:
        now, running, fails = 0.0, 0, False
        sent: list[tuple[float, int]] = []

        def send(number: int) -> None:
            if fails:
                raise OSError("away")
            sent.append((now, number))

        report = BusyReport(lambda: running, send, monotonic=lambda: now)
        for at, number in ((0, 0), (1, 0), (2, 3), (3, 4), (4, 5), (5, 0), (6, 1), (7, 2)):
            now, running = at, number
            await report.run_once()
        assert sent == [(0, 0), (2, 3), (5, 0), (6, 1)]
        now = 6 + REPORT_EVERY
        await report.run_once()
        assert sent[-1] == (now, 2)
        fails, running = True, 0
        await report.run_once()
        fails, now = False, now + 1
        await report.run_once()  # not at once: an API that fails is not asked twice a second
        assert sent[-1][1] == 2
        now += REPORT_EVERY
        await report.run_once()
        assert sent[-1] == (now, 0)

    asyncio.run(body())
