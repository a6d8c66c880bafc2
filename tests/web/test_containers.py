"""Image, compose file, chart, KEDA and systemd together: every command line is run by the real program.

The image is built by scripts/image.py, the chart rendered by tests/web/helm.py. A container's command
line is put together as Docker and Kubernetes do: `command` of Kubernetes and `entrypoint` of compose
take the place of the image's entry point, `args` and `command` of compose that of its CMD.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests import tools
from tests.servers import free_port
from tests.web.helm import Chart, TemplateError
from winch import App
from winch.web.mount import ROUTES
from winch.web.schemas.queues import ScaleOut, ScaleQuery

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = Chart(DEPLOY / "helm/winch")
COMPOSE = yaml.safe_load((DEPLOY / "docker/compose.yml").read_text())
WORKLOADS = ("Deployment", "Job")


@dataclass(frozen=True)
class Image:
    """The result of the build, and its processes."""

    entrypoint: list[str]
    cmd: list[str]
    healthcheck: list[str]
    workdir: Path
    path: str
    stopsignal: str

    def environment(self, folder: Path) -> dict[str, str]:
        """What a container gets: a store, and a temporary folder of its own. The app is not in it."""
        (folder / "tmp").mkdir(exist_ok=True)
        url = f"sqlite:///{folder / 'winch.db'}"
        return {"PATH": self.path, "WINCH_URL": url, "TMPDIR": str(folder / "tmp"), "HOME": str(folder)}

    def run(self, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, cwd=self.workdir, env=env, capture_output=True, text=True, timeout=120, check=False
        )

    @contextmanager
    def running(self, argv: Sequence[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(argv, cwd=self.workdir, env=env, stderr=subprocess.PIPE)
        try:
            yield process
        finally:
            process.send_signal(getattr(signal, self.stopsignal))
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors.decode()


def built(folder: Path, *options: str) -> Image:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/image.py", folder, *options],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    config = json.loads(done.stdout)
    return Image(**{**config, "workdir": Path(config["workdir"])})


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return built(tmp_path_factory.mktemp("image"), "--reuse")


def everything(port: int = 8090) -> dict[str, Any]:
    """Values that use every part of the chart."""
    values = CHART.values
    for name in ("autoscale", "podMonitor", "networkPolicy"):
        values[name]["enabled"] = True
    values |= {
        "imagePullSecrets": [{"name": "registry"}],
        "env": [{"name": "LOG_LEVEL", "value": "info"}],
        "envFrom": [{"configMapRef": {"name": "shop"}}],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "jobs", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "podAnnotations": {"team": "shop"},
        "serviceAccount": {"create": True, "name": "", "annotations": {"a": "b"}, "automount": True},
    }
    values["workers"].append(
        {
            "name": "slow", "replicas": 0, "queues": "slow:5,low:1", "concurrency": 2, "processes": 2,
            "graceSeconds": 300, "extraArgs": ["--max-jobs", "50"], "nodeSelector": {"gpu": "yes"},
            "resources": {"limits": {"cpu": "1"}},
        }
    )  # fmt: skip
    values["web"] |= {
        "port": port,
        "hosts": ["jobs.example.com"],
        "extraArgs": ["--environment", "prod"],
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {"a": "b"},
            "tls": [{"secretName": "tls", "hosts": ["jobs.example.com"]}],
        },
    }
    return values


VALUES: dict[str, Callable[[], dict[str, Any]]] = {
    "default values": lambda: CHART.values,
    "every part": everything,
}


def containers(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The containers that the chart makes, by the name of their workload."""
    found = {}
    for document in CHART.documents(values):
        if document["kind"] in WORKLOADS:
            [box] = document["spec"]["template"]["spec"]["containers"]
            found[document["metadata"]["name"]] = box
    return found


def in_pod(image: Image, box: dict[str, Any]) -> list[str]:
    return [*box.get("command", image.entrypoint), *box.get("args", image.cmd)]


def in_compose(image: Image, service: dict[str, Any]) -> list[str]:
    return [*service.get("entrypoint", image.entrypoint), *service.get("command", image.cmd)]


# -- the image and the compose file ------------------------------------------------------------------


OURS = {name: service for name, service in COMPOSE["services"].items() if "build" in service}


@pytest.mark.parametrize("name", OURS)
def test_a_service_of_compose_starts_a_command_that_exists(
    name: str, image: Image, tmp_path: Path
) -> None:
    done = image.run([*in_compose(image, OURS[name]), "--help"], image.environment(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: winch {in_compose(image, OURS[name])[1]}")


@pytest.mark.slow  # the commands by themselves are started above, in every run
def test_compose_as_a_whole_migrates_works_and_serves(image: Image, tmp_path: Path) -> None:
    port = free_port()
    env = {**OURS["worker"]["environment"], **image.environment(tmp_path)}
    assert image.run(in_compose(image, OURS["migrate"]), env).returncode == 0
    made = image.run([*image.entrypoint, "token", "create", "ops", "--role", "admin", "--json"], env)
    token = json.loads(made.stdout)["token"]
    enqueued = image.run(["winch", "enqueue", "shop.add", "--args", '{"a": 1, "b": 2}'], env)
    assert enqueued.returncode == 0, enqueued.stderr
    assert image.run(image.healthcheck, env).returncode == 1, "nothing runs"
    web = [*in_compose(image, OURS["web"]), "--port", str(port)]
    with image.running(in_compose(image, OURS["worker"]), env), image.running(web, env):
        headers = {"authorization": f"Bearer {token}"}
        deadline, completed = time.monotonic() + 60, 0
        while not completed and time.monotonic() < deadline:
            time.sleep(0.2)
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/stats", headers=headers, timeout=10)
                completed = answer.json()["jobs"].get("completed", 0)
            except httpx.ConnectError:
                continue
        assert completed
        assert image.run(image.healthcheck, env).returncode == 0


@pytest.mark.slow
def test_the_image_built_in_full_runs_a_job(tmp_path: Path) -> None:
    image = built(tmp_path / "image")
    env = {**OURS["worker"]["environment"], **image.environment(tmp_path)}
    for argv in (
        ["migrate"],
        ["enqueue", "shop.add", "--args", '{"a": 1, "b": 2}'],
        [*image.cmd, "--burst"],
    ):
        done = image.run([*image.entrypoint, *argv], env)
        assert done.returncode == 0, done.stderr
    done = image.run(["winch", "jobs", "list", "--state", "completed", "--json"], env)
    assert '"shop.add"' in done.stdout


def test_compose_names_the_app_and_starts_again_what_ends() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["restart"] == ("on-failure" if name == "migrate" else "unless-stopped")
    for service in OURS.values():
        assert service["environment"]["WINCH_APP"] == "shop:app"
        assert service["environment"]["WINCH_URL"].startswith("postgresql://")
    worker = OURS["worker"]
    grace = worker["command"][worker["command"].index("--grace") + 1]
    assert int(worker["stop_grace_period"].rstrip("s")) >= int(grace.rstrip("s")) + 10


def test_the_health_check_leaves_the_store_alone(image: Image, tmp_path: Path) -> None:
    env = {**image.environment(tmp_path), "WINCH_URL": "postgresql://127.0.0.1:1/gone"}
    done = image.run(image.healthcheck, env)
    assert done.returncode == 1
    assert "no live worker or server" in done.stdout


# -- the chart ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", VALUES)
def test_a_container_of_the_chart_starts_a_command_that_exists(
    values: str, image: Image, tmp_path: Path
) -> None:
    boxes = containers(VALUES[values]())
    assert {name.split("-")[1] for name in boxes} == {"worker", "web", "migrate"}
    for box in boxes.values():
        argv = in_pod(image, box)
        done = image.run([*argv, "--help"], image.environment(tmp_path))
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"Usage: winch {argv[1]} ")


@pytest.mark.slow
def test_the_containers_of_the_chart_run(image: Image, tmp_path: Path) -> None:
    port, health = free_port(), free_port()
    boxes = containers(everything(port))
    env = image.environment(tmp_path)
    assert image.run(in_pod(image, boxes["shop-migrate"]), env).returncode == 0
    made = image.run(["winch", "token", "create", "scaler", "--role", "read", "--json"], env)
    token = json.loads(made.stdout)["token"]
    worker = [
        str(health) if word == "8081" else word for word in in_pod(image, boxes["shop-worker-slow"])
    ]
    with (
        image.running(in_pod(image, boxes["shop-web"]), env),
        image.running(worker, env),
    ):
        for box, at in ((boxes["shop-web"], port), (boxes["shop-worker-slow"], health)):
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                if kind in box:
                    assert probed(box[kind]["httpGet"], at) == 200, kind
        [scaled] = [one for one in CHART.documents(everything(port)) if one["kind"] == "ScaledObject"]
        [trigger] = scaled["spec"]["triggers"]
        url = httpx.URL(trigger["metadata"]["url"])
        assert url.host == "shop-web.prod.svc"
        headers = {"authorization": f"Bearer {token}", "host": url.netloc.decode()}
        answer = httpx.get(url.copy_with(host="127.0.0.1"), headers=headers, timeout=10)
        assert answer.json()[trigger["metadata"]["valueLocation"]] == 0


def probed(probe: dict[str, Any], port: int) -> int:
    """Ask as a kubelet does: by the pod's address unless the probe has a header of its own."""
    own = {header["name"].lower(): header["value"] for header in probe.get("httpHeaders", ())}
    deadline = time.monotonic() + 30
    status = 0
    while status != 200 and time.monotonic() < deadline:
        try:
            status = httpx.get(
                f"http://127.0.0.1:{port}{probe['path']}",
                headers={"host": f"10.1.2.3:{port}", **own}, timeout=5,
            ).status_code  # fmt: skip
        except httpx.ConnectError:
            time.sleep(0.2)
    return status


def test_the_chart_makes_what_it_should() -> None:
    plain = [(one["kind"], one["metadata"]["name"]) for one in CHART.documents(CHART.values)]
    assert sorted(plain) == [
        ("Deployment", "shop-web"),
        ("Deployment", "shop-worker-default"),
        ("Job", "shop-migrate"),
        ("PodDisruptionBudget", "shop-worker-default"),
        ("Service", "shop-web"),
    ]
    full = [(one["kind"], one["metadata"]["name"]) for one in CHART.documents(everything())]
    assert sorted(set(full) - set(plain)) == [
        ("Deployment", "shop-worker-slow"),
        ("Ingress", "shop-web"),
        ("NetworkPolicy", "shop-worker"),
        ("PodDisruptionBudget", "shop-worker-slow"),
        ("PodMonitor", "shop-worker"),
        ("ScaledObject", "shop-worker-default"),
        ("ServiceAccount", "shop"),
        ("TriggerAuthentication", "shop-scaler"),
    ]
    assert len(set(full)) == len(full)


def test_what_the_chart_names_is_there() -> None:
    made = CHART.documents(everything())
    there = {(one["kind"], one["metadata"]["name"]) for one in made}
    pods = {}
    for one in made:
        spec = one.get("spec", {})
        if one["kind"] == "ScaledObject":
            assert ("Deployment", spec["scaleTargetRef"]["name"]) in there
            for trigger in spec["triggers"]:
                assert ("TriggerAuthentication", trigger["authenticationRef"]["name"]) in there
                path = httpx.URL(trigger["metadata"]["url"]).path
                assert path in {route.path for route in ROUTES}
        elif one["kind"] == "Ingress":
            [rule] = spec["rules"]
            [path] = rule["http"]["paths"]
            assert ("Service", path["backend"]["service"]["name"]) in there
            assert rule["host"] == "jobs.example.com"
        elif one["kind"] in WORKLOADS:
            pods[one["metadata"]["name"]] = spec["template"]
    for name, template in pods.items():
        pod = template["spec"]
        [box] = pod["containers"]
        assert box["image"] == "registry.example.com/shop:1.0.0"
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert box["securityContext"]["allowPrivilegeEscalation"] is False
        assert box["env"] == [{"name": "LOG_LEVEL", "value": "info"}]
        assert box["envFrom"] == [
            {"secretRef": {"name": "winch"}},
            {"configMapRef": {"name": "shop"}},
        ]
        assert pod["tolerations"] == [{"key": "jobs", "operator": "Exists"}]
        assert pod["nodeSelector"] == ({"gpu": "yes"} if "slow" in name else {"disk": "ssd"})
        assert {one["name"] for one in box["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
        if name == "shop-migrate":
            assert "serviceAccountName" not in pod, "the hook runs before the chart's account is there"
        else:
            assert ("ServiceAccount", pod["serviceAccountName"]) in there
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in box:
                assert box[probe]["httpGet"]["port"] in {port["name"] for port in box["ports"]}
    selectors = [
        one["spec"]["selector"]["matchLabels"]
        for one in made
        if one["kind"] in ("Deployment", "PodDisruptionBudget")
    ]
    for labels in selectors:
        chosen = [
            name
            for name, template in pods.items()
            if labels.items() <= template["metadata"]["labels"].items()
        ]
        assert len(chosen) == 1, "a selector is of one pool"


def test_a_pool_gets_its_grace_and_the_scaler_its_replicas() -> None:
    made = {
        one["metadata"]["name"]: one
        for one in CHART.documents(everything())
        if one["kind"] == "Deployment"
    }
    graces = {
        name: one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for name, one in made.items()
    }
    assert graces == {"shop-web": 15, "shop-worker-default": 40, "shop-worker-slow": 310}
    assert "replicas" not in made["shop-worker-default"]["spec"], "the scaler decides"
    assert made["shop-worker-slow"]["spec"]["replicas"] == 0, "a pool without autoscale keeps its number"


def test_an_ingress_without_a_name_is_refused() -> None:
    values = everything()
    values["web"]["hosts"] = []
    with pytest.raises(TemplateError, match=r"web\.ingress needs web\.hosts"):
        CHART.documents(values)


def test_the_notes_name_commands_that_exist(image: Image, tmp_path: Path) -> None:
    notes = CHART.rendered(everything())["NOTES.txt"]
    [command] = re.findall(r" -- (winch .*)", notes)
    done = image.run([*shlex.split(command), "--help"], image.environment(tmp_path))
    assert done.returncode == 0, done.stderr


SCHEMA = json.loads((DEPLOY / "helm/winch/values.schema.json").read_text())


def wrong(value: Any, rule: dict[str, Any], where: str = "values") -> list[str]:
    """What JSON Schema would refuse; every keyword that the schema uses, and no other."""
    known = {
        "$schema", "type", "enum", "pattern", "minLength", "minimum", "maximum", "minItems", "items",
        "properties", "required", "additionalProperties",
    }  # fmt: skip
    assert set(rule) <= known, f"{where}: a keyword that this test does not know"
    kinds = {"object": dict, "string": str, "integer": int, "boolean": bool, "array": list}
    kind = kinds.get(rule.get("type", ""))
    if kind is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        return [f"{where} is no {rule['type']}"]
    found = []
    if "enum" in rule and value not in rule["enum"]:
        found.append(f"{where} is none of {rule['enum']}")
    if "pattern" in rule and not re.search(rule["pattern"], value):
        found.append(f"{where} does not match")
    if len(value) < rule.get("minLength", 0) if isinstance(value, str) else False:
        found.append(f"{where} is too short")
    if isinstance(value, int) and not rule.get("minimum", value) <= value <= rule.get("maximum", value):
        found.append(f"{where} is out of range")
    if isinstance(value, list):
        if len(value) < rule.get("minItems", 0):
            found.append(f"{where} has too few")
        for number, item in enumerate(value):
            found += wrong(item, rule.get("items", {}), f"{where}[{number}]")
    if isinstance(value, dict):
        found += [f"{where}.{name} is missing" for name in rule.get("required", ()) if name not in value]
        properties = rule.get("properties", {})
        for name, inner in value.items():
            if name in properties:
                found += wrong(inner, properties[name], f"{where}.{name}")
            elif rule.get("additionalProperties") is False:
                found.append(f"{where}.{name} is not known")
    return found


@pytest.mark.parametrize("values", VALUES)
def test_the_schema_takes_the_values(values: str) -> None:
    assert wrong(VALUES[values](), SCHEMA) == []
    assert set(SCHEMA["properties"]) - {"global"} == set(CHART.values)


@pytest.mark.parametrize(
    "path, value, message",
    [
        (("app",), "shop", "values.app does not match"),
        (("workers",), [], "values.workers has too few"),
        (("workers", 0, "name"), "Not A Name", "values.workers[0].name does not match"),
        (("workers", 0, "replica"), 2, "values.workers[0].replica is not known"),
        (("workers", 0, "concurrency"), 0, "values.workers[0].concurrency is out of range"),
        (("web", "port"), "8090", "values.web.port is no integer"),
        (("worker",), {}, "values.worker is not known"),
    ],
)
def test_the_schema_refuses_mistakes(path: tuple[Any, ...], value: Any, message: str) -> None:
    values = copy.deepcopy(CHART.values)
    into = values
    for part in path[:-1]:
        into = into[part]
    into[path[-1]] = value
    assert wrong(values, SCHEMA) == [message]


# No package of pip, npm or Debian has it.
HELM = "curl -fsSL https://raw.githubusercontent.com/helm/helm/main/scripts/get-helm-3 | bash"


@pytest.mark.parametrize("values", VALUES)
def test_helm_renders_the_same(values: str, tmp_path: Path) -> None:
    helm = tools.program("helm", install=HELM, is_packaged=False)
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(VALUES[values]()))
    command = [helm, "template", "shop", str(CHART.folder), "-n", "prod", "-f", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    def key(document: dict[str, Any]) -> tuple[str, str]:
        return document["kind"], document["metadata"]["name"]

    theirs = [document for document in yaml.safe_load_all(done.stdout) if document]
    assert sorted(theirs, key=key) == sorted(CHART.documents(VALUES[values]()), key=key)


# -- KEDA and systemd --------------------------------------------------------------------------------


def test_the_scaler_names_what_its_file_holds() -> None:
    made = list(yaml.safe_load_all((DEPLOY / "keda/scaledobject.yaml").read_text()))
    there = {(one["kind"], one["metadata"]["name"]) for one in made}
    scaled = [one for one in made if one["kind"] == "ScaledObject"]
    triggers = [trigger for one in scaled for trigger in one["spec"]["triggers"]]
    assert len(triggers) == 2
    for trigger in triggers:
        assert ("TriggerAuthentication", trigger["authenticationRef"]["name"]) in there
        url = httpx.URL(trigger["metadata"]["url"])
        assert url.path in {route.path for route in ROUTES}
        assert set(url.params) <= set(ScaleQuery.__struct_fields__)
        assert trigger["metadata"]["valueLocation"] in ScaleOut.__struct_fields__


UNITS = ["winch-worker@.service", "winch-serve.service"]


def exec_start(unit: str) -> list[str]:
    [command] = re.findall(r"^ExecStart=(.*)$", (DEPLOY / "systemd" / unit).read_text(), re.MULTILINE)
    return shlex.split(command)


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_starts_a_command_that_exists(unit: str, image: Image, tmp_path: Path) -> None:
    program, *words = exec_start(unit)
    assert Path(program).name == "winch"
    done = image.run(["winch", *words, "--help"], image.environment(tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_waits_longer_than_the_grace_and_knows_the_exit_codes(unit: str) -> None:
    text = (DEPLOY / "systemd" / unit).read_text()
    [stop] = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    words = exec_start(unit)
    grace = int(words[words.index("--grace") + 1].rstrip("s")) if "--grace" in words else 5
    assert int(stop) >= grace + 10
    assert "RestartPreventExitStatus=2 4" in text


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_takes_the_unit(unit: str, tmp_path: Path) -> None:
    program, *_ = exec_start(unit)
    text = (DEPLOY / "systemd" / unit).read_text().replace(program, sys.executable)
    # Under another name than a unit of this machine may have.
    file = tmp_path / unit.replace("winch-", "winch-under-test-")
    file.write_text(text)
    analyze = tools.program("systemd-analyze", install="apt-get install systemd")
    command = [analyze, "verify", "--man=no", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    mine = [line for line in done.stderr.splitlines() if file.name.partition("@")[0] in line]
    assert (done.returncode, mine) == (0, []), done.stderr


def test_the_example_app_is_an_app() -> None:
    scope: dict[str, Any] = {"__name__": "shop"}
    exec((DEPLOY / "docker/shop/shop.py").read_text(), scope)  # noqa: S102  # our own file
    app = scope["app"]
    assert isinstance(app, App)
    assert set(app.tasks.names) >= {"shop.add", "shop.tidy"}
