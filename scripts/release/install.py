"""Install a wheel into an empty environment and run the example of the README there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120
# A block that names its file in the first line, and the commands that come right after it.
EXAMPLE = re.compile(r"```python\n# (\w+\.py)\n(.*?)```\s+```console\n(.*?)```", re.DOTALL)
PROOF = (
    "import winch, {module} as m;"
    "print(sorted(job.state.value for job in m.app.jobs.list()), winch.__version__)"
)


def find_pythons(versions: Iterable[str]) -> dict[str, Path | None]:
    """An interpreter of each version, from PATH or from pyenv; None where there is none."""
    return {version: find_python(version) for version in versions}


def find_python(version: str) -> Path | None:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    folders = [Path(folder) for folder in os.get_exec_path()]
    kept = sorted(
        pyenv.glob(f"{version}.*"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)]
    )
    for folder in [*(path / "bin" for path in reversed(kept)), *folders]:
        python = folder / f"python{version}"
        # A shim of a version manager can exist for a Python that is not there.
        if (
            python.exists()
            and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
        ):
            return python
    return None


def example() -> tuple[str, str, list[str]]:
    """The file of the README's example, its text, and the commands that follow it."""
    found = EXAMPLE.search((ROOT / "README.md").read_text())
    if found is None:
        raise SystemExit(
            "README.md has no python block that names its file, followed by a console block"
        )
    name, text, console = found.groups()
    return (
        name,
        text,
        [line.removeprefix("$ ") for line in console.splitlines() if line.startswith("$ ")],
    )


def run_readme(python: Path, wheel: Path) -> bool:
    """Whether the example runs in an empty environment of this Python and completes its jobs."""
    name, text, commands = example()
    with tempfile.TemporaryDirectory(prefix="winch-install-") as folder:
        home = Path(folder)
        subprocess.run([python, "-m", "venv", str(home / "venv")], check=True)
        bin = home / "venv/bin"
        subprocess.run([bin / "python", "-m", "pip", "install", "--quiet", str(wheel)], check=True)
        (home / name).write_text(text)
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("WINCH_", "PYTHON"))
        }
        env = {**kept, "PATH": f"{bin}:{os.environ['PATH']}", "VIRTUAL_ENV": str(home / "venv")}
        shown = ""
        proof = f"python -c {shlex.quote(PROOF.format(module=name.removesuffix('.py')))}"
        for command in [*commands, proof]:
            done = subprocess.run(
                shlex.split(command), cwd=home, env=env, capture_output=True, text=True,
                timeout=SECONDS, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                print(f"{python}: $ {command}\n{done.stdout}{done.stderr}")
                return False
            shown = done.stdout.strip()
    version = subprocess.run(
        [python, "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    print(f"{version}: {wheel.name} runs the README; jobs {shown}")
    return set(re.findall(r"'(\w+)'", shown)) == {"completed"}
