"""`--help` of every command, compared with files; WINCH_UPDATE_GOLDEN=1 rewrites them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from winch.cli import COMMANDS, HIDDEN, cli

GOLDEN = Path(__file__).parent.parent / "golden" / "help"
WIDTH = 100


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ("winch",)
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path[-1])
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, (*path, name))


def help_of(path: tuple[str, ...], command: click.Command) -> str:
    context: click.Context | None = None
    for number, name in enumerate(path, start=1):
        context = click.Context(
            ALL[path[:number]],
            parent=context,
            info_name=name,
            terminal_width=WIDTH,
            max_content_width=WIDTH,
            help_option_names=["-h", "--help"],
        )
    assert context is not None
    return command.get_help(context) + "\n"


ALL = dict(commands())


@pytest.mark.parametrize("path", ALL, ids="-".join)
def test_help_is_as_agreed(path: tuple[str, ...]) -> None:
    file = GOLDEN / f"{'-'.join(path)}.txt"
    shown = help_of(path, ALL[path])
    if os.environ.get("WINCH_UPDATE_GOLDEN"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(shown)
    assert shown == file.read_text(), "the help has changed; WINCH_UPDATE_GOLDEN=1 rewrites the file"


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == {"-".join(path) for path in ALL}


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - HIDDEN))
def test_the_line_in_the_list_is_the_commands_own(name: str) -> None:
    own = (ALL["winch", name].help or "").split("\n\n")[0].split(";")[0].rstrip(".")
    assert COMMANDS[name][2].split(";")[0].rstrip(".") == own.replace("\n", " ").strip()


@pytest.mark.parametrize("path", [path for path, c in ALL.items() if not isinstance(c, click.Group)])
def test_every_command_that_prints_data_speaks_json(path: tuple[str, ...]) -> None:
    names = {option for param in ALL[path].params for option in param.opts}
    assert ("--json" in names) != (path[1] in ("dev", "worker", "demo", "serve") or path[-1] == "revoke")


def test_showing_the_help_imports_no_command() -> None:
    code = (
        "import sys, winch.cli; winch.cli.run_command(['--help']);"
        "print([m for m in sys.modules if m.startswith(('winch.cli.', 'asyncio', 'psycopg'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
