"""The software bill of materials of a wheel: CycloneDX 1.6 in JSON, beside the wheel.

    python -m scripts.release.sbom dist/winch_jobs-0.1.0-py3-none-any.whl

It lists the wheel, each package that pip would install with it, with hash and licence, and each file of
others that the wheel carries. Packages that only extras need have the scope "optional". The versions are
those that the index offers today to this Python on this system; pip resolves them and installs nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
import tomllib
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VENDORED = Path(__file__).with_name("vendored.toml")
# `Requires-Dist: msgspec>=0.19; extra == "x"`
REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")


def write_sbom(wheel: Path, epoch: int) -> Path:
    """Write the bill for this wheel and validate it against the schema of CycloneDX."""
    report = resolve(wheel)
    document = bill(report, wheel, epoch)
    version = wheel.name.split("-")[1]
    path = wheel.with_name(f"winch_jobs-{version}.cdx.json")
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    validate(path.read_text())
    return path


def resolve(wheel: Path) -> list[dict[str, Any]]:
    """What `pip install winch-jobs[all]` would install, the wheel included."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    done = subprocess.run([*pip, "--report", "-", f"{wheel}[all]"], stdout=subprocess.PIPE, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return sorted(found, key=name_of)


def bill(report: list[dict[str, Any]], wheel: Path, epoch: int) -> dict[str, Any]:
    packages = {name_of(one): one for one in report}
    ours = packages.pop("winch-jobs")
    edges = {name_of(one): sorted(needed(one, packages)) for one in report}
    always = reached(needed(ours, packages, with_extras=False), edges)
    root = component(ours, digest=hashlib.sha256(wheel.read_bytes()).hexdigest())
    components = [
        {**component(one), "scope": "required" if name in always else "optional"}
        for name, one in packages.items()
    ] + vendored()
    references = {name: purl(one) for name, one in packages.items()}
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
            "component": root,
        },
        "components": components,
        "dependencies": [
            {
                "ref": purl(one),
                "dependsOn": [references[other] for other in edges[name_of(one)]]
                + ([part["bom-ref"] for part in vendored()] if one is ours else []),
            }
            for one in report
        ],
    }
    # The same content has the same serial number.
    text = json.dumps(document, sort_keys=True)
    return {**document, "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}"}


def name_of(one: dict[str, Any]) -> str:
    return re.sub(r"[-_.]+", "-", one["metadata"]["name"]).lower()


def purl(one: dict[str, Any]) -> str:
    return f"pkg:pypi/{name_of(one)}@{one['metadata']['version']}"


def component(one: dict[str, Any], digest: str | None = None) -> dict[str, Any]:
    metadata = one["metadata"]
    known = digest or one["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl(one),
        "name": metadata["name"],
        "version": metadata["version"],
        "purl": purl(one),
    }
    if "summary" in metadata:
        found["description"] = metadata["summary"]
    if known:
        found["hashes"] = [{"alg": "SHA-256", "content": known}]
    if licence := licence_of(metadata):
        found["licenses"] = [licence]
    return found


def licence_of(metadata: dict[str, Any]) -> dict[str, Any] | None:
    """The licence as the package states it: an expression, a classifier, or a short text."""
    if expression := metadata.get("license_expression"):
        return {"expression": expression}
    for classifier in metadata.get("classifier", ()):
        if classifier.startswith("License :: OSI Approved :: "):
            return {"license": {"name": classifier.rpartition(" :: ")[2]}}
    text = metadata.get("license", "").strip()
    return {"license": {"name": text}} if text and "\n" not in text else None


def needed(one: dict[str, Any], known: Iterable[str], *, with_extras: bool = True) -> set[str]:
    """The packages that this one requires, of those that pip chose."""
    found = set()
    for line in one["metadata"].get("requires_dist", ()):
        match = REQUIREMENT.match(line)
        if match and (with_extras or "extra ==" not in line):
            found.add(re.sub(r"[-_.]+", "-", match[1]).lower())
    return found & set(known)


def reached(first: set[str], edges: dict[str, list[str]]) -> set[str]:
    found: set[str] = set()
    todo = list(first)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += edges[name]
    return found


def vendored() -> list[dict[str, Any]]:
    """The files of others that the wheel carries, from vendored.toml."""
    found = []
    for name, one in tomllib.loads(VENDORED.read_text()).items():
        reference = f"pkg:npm/{one['package']}@{one['version']}"
        digest = hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
        found.append(
            {
                "type": "library",
                "bom-ref": reference,
                "name": one["package"],
                "version": one["version"],
                "purl": reference,
                "description": name.removeprefix("src/"),
                "scope": "required",
                "hashes": [{"alg": "SHA-256", "content": digest}],
                "licenses": [{"expression": one["licence"]}],
            }
        )
    return found


def validate(text: str) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise SystemExit(f"the bill of materials does not fit its schema: {error}")


if __name__ == "__main__":
    print(write_sbom(Path(sys.argv[1]).resolve(), int(time.time())))
