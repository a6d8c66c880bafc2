"""Carry out the steps of deploy/docker/Dockerfile in a folder, without Docker, and print the result.

    python scripts/image.py FOLDER [--context APPLICATION] [--reuse]

The folder gets a virtual environment in the place of the base image, and the image's working directory.
COPY copies, RUN runs in a shell; `useradd` is left out, since it would change this machine. The
distribution is built from this checkout. --reuse takes the packages of the running environment instead
of installing any.

Prints one JSON object: entrypoint, cmd, healthcheck, workdir, path (the PATH of its processes).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "deploy/docker/Dockerfile"


def steps(dockerfile: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, in order."""
    text = "\n".join(line for line in dockerfile.read_text().splitlines() if not line.startswith("#"))
    lines = text.replace("\\\n", " ").splitlines()
    return [
        (name.upper(), rest.strip()) for name, _, rest in (line.partition(" ") for line in lines) if name
    ]


class Image:
    """What the steps have come to so far."""

    def __init__(self, folder: Path, context: Path, *, is_reusing: bool) -> None:
        self._folder = folder.resolve()
        self._context = context.resolve()
        self._is_reusing = is_reusing
        self._environment = dict(os.environ)
        self._workdir = self._folder
        self.config: dict[str, Any] = {"entrypoint": [], "cmd": [], "healthcheck": None}

    def build(self, dockerfile: Path) -> None:
        for name, rest in steps(dockerfile):
            step = STEPS.get(name)
            if step is None:
                raise SystemExit(f"{dockerfile}: {name} is not known here")
            print(f"{name} {rest}", file=sys.stderr)
            step(self, rest)
        self.config |= {"workdir": str(self._workdir), "path": self._environment["PATH"]}

    def _from(self, _: str) -> None:
        home = self._folder / "python"
        venv.create(home, with_pip=True)
        path = [str(home / "bin")]
        if self._is_reusing:
            purelib = sysconfig.get_paths()["purelib"]
            [packages] = home.glob("lib/*/site-packages")
            (packages / "reused.pth").write_text(f"import site; site.addsitedir({purelib!r})\n")
            path.append(str(Path(sys.executable).parent))
        else:
            self._environment["PIP_FIND_LINKS"] = str(self._wheel())
        self._environment["PATH"] = os.pathsep.join([*path, "/usr/bin", "/bin"])

    def _wheel(self) -> Path:
        into = self._folder / "wheels"
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", into, ROOT], check=True
        )
        return into

    def _workdir_to(self, rest: str) -> None:
        self._workdir = self._folder / rest.lstrip("/")
        self._workdir.mkdir(parents=True, exist_ok=True)

    def _copy(self, rest: str) -> None:
        source, target = rest.split()
        from_, into = self._context / source, self._workdir / target
        if from_.is_dir():
            shutil.copytree(from_, into, dirs_exist_ok=True)
        else:
            shutil.copy(from_, into)

    def _run(self, rest: str) -> None:
        if rest.startswith("useradd "):
            return
        subprocess.run(
            ["/bin/sh", "-ec", rest],
            cwd=self._workdir, env=self._environment, check=True, stdout=sys.stderr,
        )  # fmt: skip

    def _user(self, _: str) -> None:
        """Left out: the steps and the processes run as the user of this script."""

    def _stopsignal(self, rest: str) -> None:
        self.config["stopsignal"] = rest

    def _healthcheck(self, rest: str) -> None:
        self.config["healthcheck"] = json.loads(rest.partition("CMD ")[2])

    def _entrypoint(self, rest: str) -> None:
        self.config["entrypoint"] = json.loads(rest)

    def _cmd(self, rest: str) -> None:
        self.config["cmd"] = json.loads(rest)


STEPS = {
    "FROM": Image._from,
    "WORKDIR": Image._workdir_to,
    "COPY": Image._copy,
    "RUN": Image._run,
    "USER": Image._user,
    "STOPSIGNAL": Image._stopsignal,
    "HEALTHCHECK": Image._healthcheck,
    "ENTRYPOINT": Image._entrypoint,
    "CMD": Image._cmd,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--context", type=Path, default=ROOT / "deploy/docker/shop")
    parser.add_argument("--reuse", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    image = Image(given.folder, given.context, is_reusing=given.reuse)
    image.build(DOCKERFILE)
    print(json.dumps(image.config))


if __name__ == "__main__":
    main()
