"""The Helm chart, rendered as far as it goes without Helm: this test knows the few words of the template
language that the chart uses and refuses any other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from winch.cli import cli
from winch.engine.health import HealthPort
from winch.engine.vitals import Vitals
from winch.web.mount import ROUTES

CHART = Path(__file__).parents[2] / "deploy/helm/winch"
TAG = re.compile(r"{{-?\s*(.*?)\s*-?}}")


def value(words: str, scope: dict[str, Any], dot: Any) -> Any:
    expr, *pipes = [part.strip() for part in words.split("|")]
    if expr.startswith("add "):
        found: Any = sum(int(value(word, scope, dot)) for word in expr.split()[1:])
    elif expr.startswith("not "):
        found = not value(expr[4:], scope, dot)
    elif expr.isdigit():
        found = int(expr)
    elif expr == ".":
        found = dot
    else:
        assert re.fullmatch(r"(\.\w+)+", expr), f"not a word this test knows: {words!r}"
        found = scope
        for name in expr[1:].split("."):
            found = found[name]
    for pipe in pipes:
        assert pipe == "toJson", f"not a pipe this test knows: {pipe!r}"
        found = json.dumps(found)
    return found


def render(text: str, scope: dict[str, Any]) -> str:
    """If, range and values; a tag with a dash takes the space before it along."""
    text = re.sub(r"\s*{{-", "{{-", text)
    out: list[str] = []
    place = 0

    def block(start: int, dot: Any, is_shown: bool) -> int:
        at = start
        while found := TAG.search(text, at):
            if is_shown:
                out.append(text[at : found.start()])
            words, at = found[1], found.end()
            if words == "end":
                return at
            if words.startswith("if "):
                at = block(at, dot, is_shown and bool(value(words[3:], scope, dot)))
            elif words.startswith("range "):
                items = value(words[6:], scope, dot) if is_shown else []
                for item in items:
                    block(at, item, is_shown)
                at = block(at, None, False)
            elif is_shown:
                out.append(str(value(words, scope, dot)))
        if is_shown:
            out.append(text[at:])
        return len(text)

    block(place, None, True)
    return "".join(out)


def documents(**changes: dict[str, Any]) -> list[dict[str, Any]]:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for name, said in changes.items():
        values[name] = {**values[name], **said}
    scope = {"Values": values, "Release": {"Name": "shop", "Namespace": "prod"}}
    found = []
    for file in sorted((CHART / "templates").glob("*.yaml")):
        found += [doc for doc in yaml.safe_load_all(render(file.read_text(), scope)) if doc]
    return found


ALL = {name: {"enabled": True} for name in ("autoscale", "podMonitor", "networkPolicy")}


@pytest.mark.parametrize(
    "changes, kinds",
    [
        ({}, {"Deployment", "Service", "Job", "PodDisruptionBudget"}),
        (
            ALL,
            {"Deployment", "Service", "Job", "PodDisruptionBudget", "ScaledObject", "PodMonitor",
             "NetworkPolicy", "TriggerAuthentication"},
        ),
        (
            {"web": {"enabled": False}, "migrate": {"enabled": False}},
            {"Deployment", "PodDisruptionBudget"},
        ),
    ],
)  # fmt: skip
def test_the_chart_makes_what_it_should(changes: dict[str, Any], kinds: set[str]) -> None:
    found = documents(**changes)
    assert {doc["kind"] for doc in found} == kinds
    names = [(doc["kind"], doc["metadata"]["name"]) for doc in found]
    assert len(set(names)) == len(names)
    for doc in found:
        assert doc["apiVersion"]
        pod = doc.get("spec", {}).get("template", {}).get("spec")
        if pod is not None:
            assert pod["securityContext"]["runAsNonRoot"] is True
            [box] = pod["containers"]
            assert box["image"] == "registry.example.com/shop:1.0.0"
            assert box["securityContext"]["allowPrivilegeEscalation"] is False


def test_its_commands_and_probes_exist() -> None:
    found = documents(**ALL, web={"hosts": ["jobs.example.com"]})
    for doc in found:
        pod = doc.get("spec", {}).get("template", {}).get("spec")
        if pod is None:
            continue
        [box] = pod["containers"]
        program, name, *words = box["args"]
        assert program == "winch"
        with click.Context(cli) as context:
            command = cli.get_command(context, name)
            assert command is not None
            known = {option for param in command.params for option in param.opts}
        assert {word for word in words if word.startswith("-")} <= known
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            if kind in box:
                path = box[kind]["httpGet"]["path"]
                vitals = Vitals()
                port = HealthPort(
                    live=vitals.live, ready=vitals.ready, metrics=vitals.metrics, is_local=True
                )
                assert path in (*port._pages, *(route.path for route in ROUTES))
    [worker] = [
        doc for doc in found if doc["metadata"]["name"] == "shop-worker" and doc["kind"] == "Deployment"
    ]
    assert "replicas" not in worker["spec"], "the scaler has the say"
    assert worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 40
    [scaled] = [doc for doc in found if doc["kind"] == "ScaledObject"]
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["metadata"]["url"].endswith("/api/v1/autoscale?queue=default")


def test_the_schema_is_of_the_values() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def check(value: Any, rule: dict[str, Any], where: str) -> None:
        kinds = {"object": dict, "string": str, "integer": int, "boolean": bool, "array": list}
        if "type" in rule:
            assert isinstance(value, kinds[rule["type"]]), where
        if "enum" in rule:
            assert value in rule["enum"], where
        if "pattern" in rule:
            assert re.search(rule["pattern"], value), where
        if isinstance(value, dict) and "properties" in rule:
            assert set(rule.get("required", ())) <= set(value), where
            for name, inner in value.items():
                assert name in rule["properties"], f"{where}.{name} is not in the schema"
                check(inner, rule["properties"][name], f"{where}.{name}")

    check(values, schema, "values")
    assert set(schema["properties"]) - {"global"} == set(values)
