"""The code blocks of a page, and how they are run.

Every Python and console block of README.md and docs/ is run, in the order of the page, in one folder
and one process. A block that cannot be run has a comment on the line above it that gives the reason:

    <!-- not run: needs a PostgreSQL server of yours -->

Python blocks share one namespace. One that begins with `# name.py` is saved under that name and
imported; those named `test_….py` are run by pytest at the end, with the settings of a TOML block. Names
that a page takes for granted come from a hidden block, a comment `<!-- setup` that holds Python.

A page with `<!-- store: postgres -->` runs on a real server, which `$DSN` names.

A console block is a list of commands (`$ winch …`, `$ python …`, `$ export …`) with what they print.
`…` stands for anything, an id for any id. `ID` in a command is the newest job. A command that runs until
it is stopped is stopped once it has printed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
import traceback
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?"
    r"^(?P<indent> *)```(?P<kind>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$"
    r"|^<!-- setup\n(?P<setup>.*?)^-->$",
    flags=re.DOTALL | re.MULTILINE,
)
FILE = re.compile(r"# (\w+\.py)\n")
UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# They run until they are stopped.
ENDLESS = re.compile(r"winch (dev|serve|top)\b|winch worker\b(?!.*--burst)")
PATIENCE = 30.0


@dataclass(frozen=True)
class Block:
    """One block of a page; `reason` is why it is not run."""

    kind: str
    text: str
    line: int
    reason: str | None = None


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["setup"] is not None:
            found.append(Block("setup", match["setup"], line))
        else:
            body = "\n".join(one.removeprefix(match["indent"]) for one in match["text"].splitlines())
            found.append(Block(match["kind"].strip(), body + "\n", line, match["reason"]))
    return found


def run_page(page: Path, folder: Path, environment: dict[str, str]) -> str | None:
    """Run the blocks of a page in a forked process; returns what went wrong, or None."""
    report = folder / "report.txt"
    sys.stdout.flush()
    folder = folder.resolve()
    child = os.fork()
    if child == 0:
        # Nothing of the parent's may run here: no fixture, no exit handler.
        code = 1
        try:
            os.chdir(folder)
            warnings.resetwarnings()
            os.environ.update(environment)
            with (
                report.open("w") as out,
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(out),
            ):
                code = _run(page, out)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return None if os.waitstatus_to_exitcode(status) == 0 else report.read_text()


def _run(page: Path, out: Any) -> int:
    sys.path.insert(0, str(Path.cwd()))
    sys.modules["page"] = types.ModuleType("page")  # dataclasses look for the module of a class
    scope = vars(sys.modules["page"])
    for block in blocks(page):
        if block.reason is not None:
            continue
        try:
            match block.kind:
                case "console":
                    _console(block.text)
                case "python" | "setup":
                    _python(block, page, scope)
                case "toml":
                    Path("pyproject.toml").write_text(block.text)
        except BaseException:
            out.write(
                f"{page.name}, block of line {block.line}:\n{block.text}\n{traceback.format_exc()}"
            )
            return 1
    if list(Path().glob("test_*.py")):
        command = [sys.executable, "-m", "pytest", "-q", "-Werror", "-pno:anyio", "-pno:valkey"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        out.write(done.stdout + done.stderr)
        return done.returncode
    return 0


def _python(block: Block, page: Path, scope: dict[str, Any]) -> None:
    named = FILE.match(block.text)
    if named is None:
        # Blank lines before it, so that a traceback names the line of the page.
        exec(compile("\n" * block.line + block.text, page.name, "exec", dont_inherit=True), scope)  # noqa: S102  # our own page
        return
    Path(named[1]).write_text(block.text)
    if not named[1].startswith("test_"):
        module = __import__(named[1].removesuffix(".py"))
        scope.update({name: value for name, value in vars(module).items() if not name.startswith("__")})


def _console(text: str) -> None:
    for command, expected in _commands(text):
        for one in command.split(" && "):
            shown = _command(one)
            if one == command.split(" && ")[-1]:
                _compare(command, expected, shown)


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
    command, expected = "", list[str]()
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, expected
            command, expected = line[2:], []
        else:
            expected.append(line)
    yield command, expected


def _command(command: str) -> str:
    if " ID" in command:
        command = command.replace(" ID", f" {_newest()}")
    words = shlex.split(command, comments=True)
    match words:
        case ["pip", "install", *names]:
            return _pip(names)
        case ["export", assignment]:
            name, _, value = assignment.partition("=")
            os.environ[name] = value
            return ""
        case ["winch", *_] if ENDLESS.match(command):
            return _until_it_prints(words)
        case ["winch", "worker", *_]:
            return _ended(words)
        case ["winch", *arguments]:
            return _forked(lambda: _winch(arguments))
        case ["python", name]:
            return _forked(lambda: _script(name))
        case _:
            raise AssertionError(
                f"no way to run {command!r}: teach blocks.py, or say above the block why it is not run"
            )


def _newest() -> str:
    listed = _forked(lambda: _winch(["jobs", "list", "--limit", "1", "--json"]))
    found = re.search(UUID, listed)
    assert found, "ID in a command, and no job in the store"
    return found[0]


def _winch(arguments: list[str]) -> int:
    from winch.cli import run_command

    # A command imports the app of the page again, as it does in its own process.
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(f"{Path.cwd()}/"):
            del sys.modules[name]

    return run_command(arguments)


def _script(name: str) -> int:
    sys.argv = [name]
    runpy.run_path(name, run_name="__main__")
    return 0


def _pip(names: list[str]) -> str:
    """Installing takes too long and needs an index: the extras that are named must exist."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name in names:
        if name.startswith("winch-jobs["):
            for extra in name.removeprefix("winch-jobs[").rstrip("]").split(","):
                assert extra in project["optional-dependencies"], f"no extra {extra!r}"
    return ""


def _forked(work: Any) -> str:
    """What a command prints. It runs in a fork, which has everything imported already."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", buffering=0), write_through=True)
            sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", buffering=0), write_through=True)
            code = work()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as output:
        text = output.read().decode()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code == 0, f"exit code {code}:\n{text}"
    return text


def _ended(words: list[str]) -> str:
    """What a worker prints. It sets up logging and signals for itself, so it is a process of its own."""
    command = [sys.executable, "-m", "winch", *words[1:]]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}"
    return done.stdout


def _until_it_prints(words: list[str]) -> str:
    """What a command prints until two seconds pass in silence; it must then stop cleanly."""
    command = [sys.executable, "-m", "winch", *words[1:]]
    log = Path("endless.txt")
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        deadline = time.monotonic() + PATIENCE
        quiet_since, seen = time.monotonic(), 0
        while time.monotonic() < deadline and process.poll() is None:
            size = log.stat().st_size
            if size != seen:
                quiet_since, seen = time.monotonic(), size
            elif seen and time.monotonic() - quiet_since > 2:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE)
    text = log.read_text()
    assert code == 0, f"exit code {code}:\n{text}"
    return text


def _word(word: str) -> str:
    if word == "now":  # or a moment ago, on a slow machine
        return r"(?:now|\d+s ago)"
    return re.escape(word).replace("…", ".*")


def _compare(command: str, expected: list[str], shown: str) -> None:
    """Every expected line is printed, in this order; there may be others between."""
    pattern = ""
    for line in expected:
        if line.strip() in ("", "…"):
            continue
        words = [
            ".*" if word == "…" else UUID if re.fullmatch(UUID, word) else _word(word)
            for word in line.split()
        ]
        pattern += (
            "(?:.*\n)*?.*" + r"\s+".join(words).replace(r".*\s+", ".*").replace(r"\s+.*", ".*") + ".*\n?"
        )
    assert re.match(pattern, shown), f"$ {command}\nprints\n{shown}\nand not\n" + "\n".join(expected)
