"""`make frameworks`: each example shop under its own web servers, with old and new frameworks.

For each framework and for its oldest and newest supported version this script makes an environment, runs
the example's own tests in it, and serves the shop with each of its servers, on SQLite and on PostgreSQL.
Customers order, some cards are declined, and the server is killed with -9 again and again. Then the
books are audited: no accepted order is lost, none has two jobs, and a declined one has left nothing.

    python scripts/frameworks.py
    python scripts/frameworks.py --only flask --version oldest --store sqlite --kills 10
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "frameworks"
sys.path.insert(0, str(ROOT))

from tests.frameworks.shops import SERVERS, Shop, play  # noqa: E402  # after the path is set
from tests.servers import PostgresServer  # noqa: E402

STORES = ("sqlite", "postgres")
VERSIONS = ("oldest", "newest")
_TESTS = ("pytest>=8.3", "httpx>=0.27")
# What is installed for each leg. The oldest ones are what docs/support.md promises.
OLDEST = {
    "fastapi": ("fastapi==0.115.11", "starlette==0.46.0", "uvicorn==0.34.0", "sqlalchemy==2.0.36"),
    "flask": ("flask==3.0.0", "gunicorn==22.0.0", "sqlalchemy==2.0.36", "starlette==0.46.0"),
    "litestar": ("litestar==2.14.0", "uvicorn==0.34.0", "sqlalchemy==2.0.36", "starlette==0.46.0",
                 "sniffio"),  # it imports sniffio, which newer anyio no longer brings
}  # fmt: skip
NEWEST = {
    "fastapi": ("fastapi", "uvicorn", "sqlalchemy"),
    "flask": ("flask<4", "gunicorn", "sqlalchemy"),
    "litestar": ("litestar<3", "uvicorn", "sqlalchemy"),
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=sorted(OLDEST), help="this framework")
    parser.add_argument("--version", action="append", choices=VERSIONS, help="this end of the range")
    parser.add_argument("--store", action="append", choices=STORES, help="this store")
    parser.add_argument("--kills", type=int, default=5, help="kills of each server")
    parser.add_argument("--orders", type=int, default=100, help="accepted orders before each kill")
    given = parser.parse_args(arguments)
    wrong: list[str] = []
    with stores(given.store or STORES) as urls:
        for framework in given.only or sorted(OLDEST):
            for version in given.version or VERSIONS:
                python = environment(framework, version)
                name = f"{framework} {installed(python, framework)}"
                for store, url_of in urls:
                    wrong += run_leg(name, framework, python, store, url_of, given)
    for line in wrong:
        print(f"WRONG: {line}")
    print("the books balance" if not wrong else f"{len(wrong)} things are wrong")
    return 1 if wrong else 0


def run_leg(
    name: str, framework: str, python: str, store: str, urls: Iterator[str], given: argparse.Namespace
) -> list[str]:
    """Run one version of a framework on one store; returns what is wrong."""
    wrong: list[str] = []
    problem = own_tests(framework, python, next(urls))
    print(f"{name:18} {store:9} {'own tests':10} {'FAILED' if problem else 'pass'}", flush=True)
    if problem:
        wrong.append(f"{name} on {store}: its own tests:\n{problem}")
    for known, server in SERVERS:
        if known != framework:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            shop = Shop(framework, server, next(urls), Path(folder), python)
            books = play(shop, kills=given.kills, orders=given.orders)
        spent = time.monotonic() - began
        print(f"{name:18} {store:9} {server:10} {books}; {spent:.0f} s", flush=True)
        wrong += [f"{name} on {store} under {server}: {line}" for line in books.wrong]
        if not books.unanswered:
            wrong.append(f"{name} on {store} under {server}: no kill met a request")
    return wrong


def own_tests(framework: str, python: str, url: str) -> str:
    """Run the tests of the example; returns what it printed if they fail."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("WINCH_")}
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"examples/{framework}_shop"],
        cwd=ROOT,
        env={**env, "SHOP_URL": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return done.stdout + done.stderr if done.returncode else ""


def environment(framework: str, version: str) -> str:
    """The interpreter of an environment with this version, recreated when its content changes."""
    BUILD.mkdir(parents=True, exist_ok=True)
    wanted = [*(OLDEST if version == "oldest" else NEWEST)[framework], *_TESTS]
    folder = BUILD / f"venv-{framework}-{version}"
    python, stamp = folder / "bin" / "python", folder / "installed"
    if not stamp.exists() or stamp.read_text() != " ".join(wanted):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*install, *wanted, "-e", f"{ROOT}[postgres,web]"], check=True)
        stamp.write_text(" ".join(wanted))
    return str(python)


def installed(python: str, framework: str) -> str:
    code = f"from importlib.metadata import version; print(version({framework!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextmanager
def stores(wanted: Sequence[str]) -> Iterator[list[tuple[str, Iterator[str]]]]:
    """For each store an endless row of empty databases."""
    with ExitStack() as stack:
        found: list[tuple[str, Iterator[str]]] = []
        if "sqlite" in wanted:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_made(BUILD))))
            found.append(("sqlite", _files(folder)))
        if "postgres" in wanted:
            server = stack.enter_context(PostgresServer())
            found.append(("postgres", iter(server.new_database, "")))
        yield found


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _files(folder: Path) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"sqlite:///{folder / f'shop{number}.db'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
