"""Run tests with the oldest versions that pyproject.toml allows.

The lower bounds of the dependencies and extras are pinned in an environment of its own, under build/.
A bound that no longer works has to be raised, or the code repaired: the bounds are a promise.

    python scripts/oldest.py                   every part that the bounds can break
    python scripts/oldest.py core engine       these parts; what follows -- goes to pytest
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("core", "storage", "engine", "cli", "web")


def pins(project: dict[str, object]) -> list[str]:
    """`name==lowest` for each dependency of Winch itself and of the extras that `all` names. The other
    extras are tools for working on Winch."""
    dependencies: object = project["dependencies"]
    extras: object = project["optional-dependencies"]
    if not isinstance(dependencies, list) or not isinstance(extras, dict):
        raise TypeError("pyproject.toml has no list of dependencies or no table of extras")
    names = re.findall(r"[a-z0-9]+", extras["all"][0].partition("[")[2])
    public = [wanted for name in names for wanted in extras[name]]
    found = []
    for wanted in (*dependencies, *public):
        match = re.match(r"([a-z0-9-]+)(?:\[[a-z,]+\])?>=([0-9.]+)", wanted)
        if match is None:
            raise ValueError(f"{wanted!r} has no lower bound")
        found.append(f"{match[1]}=={match[2]}")
    return found


def environment() -> Path:
    """The interpreter of an environment with the oldest versions, recreated when pyproject changes."""
    text = (ROOT / "pyproject.toml").read_bytes()
    folder = ROOT / "build" / f"oldest-{hashlib.sha256(text).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        oldest = folder / "oldest.txt"
        oldest.write_text("\n".join(pins(tomllib.loads(text.decode())["project"])) + "\n")
        print(oldest.read_text(), flush=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-e", ".[all,dev]", "-c", str(oldest)], cwd=ROOT, check=True)
        stamp.touch()
    return python


def main(argv: list[str]) -> int:
    cut = argv.index("--") if "--" in argv else len(argv)
    parts = argv[:cut] or list(PARTS)
    command = [str(environment()), "scripts/test_parts.py", *parts, *argv[cut:]]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
