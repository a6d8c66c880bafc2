"""The SDKs that play the scenarios: `clients/scenarios/languages.json`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "clients" / "scenarios"


class BuildFailed(Exception):
    """An SDK that cannot be built here."""


@dataclass(frozen=True)
class Language:
    """How the runner of an SDK is built and started. Paths are relative to the repository."""

    name: str
    folder: str
    build: tuple[tuple[str, ...], ...]
    command: tuple[str, ...]
    # The SDK that this is another runtime of.
    runtime_of: str | None = None

    @property
    def is_here(self) -> bool:
        """Whether this SDK is part of the source."""
        return (ROOT / self.folder).is_dir()

    def make(self) -> None:
        """Build it. Raises BuildFailed with what the tools wrote."""
        for command in map(_words, self.build):
            program = shutil.which(command[0])
            if program is None:
                raise BuildFailed(f"{self.name} needs {command[0]}, which is not installed")
            done = subprocess.run(
                [program, *command[1:]],
                cwd=ROOT / self.folder,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            if done.returncode != 0:
                raise BuildFailed(f"{self.name}: {' '.join(command)}\n{done.stdout}{done.stderr}")

    def argv(self) -> list[str]:
        """The command that starts the runner."""
        return [sys.executable if word == "{python}" else word for word in _words(self.command)]


def _words(command: Sequence[str]) -> list[str]:
    return [word.replace("{root}", str(ROOT)) for word in command]


def languages(*, is_with_runtimes: bool = False) -> dict[str, Language]:
    """The languages by name, those too whose SDK is not here; also the further runtimes of one."""
    known = json.loads((SCENARIOS / "languages.json").read_text())
    return {
        name: Language(
            name,
            one["folder"],
            tuple(tuple(words) for words in one["build"]),
            tuple(one["command"]),
            one.get("runtime_of"),
        )
        for name, one in known.items()
        if is_with_runtimes or "runtime_of" not in one
    }
