"""`make django`: Django's own tests of its tasks, with Winch as the backend, on every store.

For each release of Django this script downloads the source release, never copied into this repository,
makes an environment for it, runs the tests of the backend and of the example shop, and runs Django's own
`tests/tasks` three times: as they are, with Winch in place of the dummy backend, and with Winch and a
real worker in place of the immediate one. What Winch fails must be named below with its reason, and
nothing else may fail. Django 6 needs Python 3.12: $WINCH_PYTHON312, pyenv or PATH must have one. Django
5.2 runs with django-tasks on this interpreter.

    python scripts/django_suite.py                    everything
    python scripts/django_suite.py --only 6.1 --store memory --store sqlite
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "django"
sys.path.insert(0, str(ROOT))

STORES = ("memory", "sqlite", "postgres", "redis")
DUMMY = "tasks.test_dummy_backend.DummyBackendTestCase."
IMMEDIATE = "tasks.test_immediate_backend.ImmediateBackendTestCase."
# What cannot pass, by suite, and why.
EXPECTED = {
    "dummy": {
        f"{DUMMY}test_refresh_result": "it writes the new status into the memory of the dummy backend",
        f"{DUMMY}test_refresh_result_async": "the same, awaited",
    },
    "immediate": {
        f"{IMMEDIATE}test_cannot_get_result": "Winch keeps results, so there is one to get",
        f"{IMMEDIATE}test_cannot_refresh_result": "and one to refresh",
        f"{IMMEDIATE}test_cannot_pass_run_after": "Winch supports run_after",
        f"{IMMEDIATE}test_throws_keyboard_interrupt": "a worker outlives its jobs; the job fails",
    },
}
# What fails without Winch too, by series, and why: the tests of 6.0 run against django-tasks there.
WITHOUT_WINCH = {
    "5.2": {
        "tasks.test_custom_backend.CustomBackendTestCase.test_enqueue_async_task_on_non_async_backend": (
            "django-tasks writes 'async tasks' where Django writes 'async Tasks'"
        ),
        f"{DUMMY}test_validate_disallowed_async_task": "the same message",
        "tasks.test_custom_backend.CustomBackendTestCase.test_no_enqueue": (
            "Python 3.11 words the error of an abstract class in another way"
        ),
    }
}
# The tests of the backend itself.
OWN = ("tests.django.suite", "tests.django.suite_discovery")
# How many tests there are at least: a suite that is found in part must not pass.
LEAST = {"5.2": 70, "6.0": 70, "6.1": 85}


@dataclass(frozen=True)
class Leg:
    """One release of Django: the series, its environment, its tests, and the API that they use."""

    series: str
    release: str
    python: Path
    tests: Path
    api: str


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=sorted(LEAST), help="this series of Django")
    parser.add_argument("--store", action="append", choices=STORES, help="this store")
    given = parser.parse_args(arguments)
    wrong: list[str] = []
    for series in given.only or sorted(LEAST):
        leg = prepared(series)
        wrong += under_pytest_django(leg)
        with stores(given.store or STORES) as urls:
            for name, url in urls:
                wrong += run_leg(leg, name, url)
                if name in ("sqlite", "postgres"):
                    wrong += own_tests(leg, name, url)
        for reasons in (*EXPECTED.values(), WITHOUT_WINCH.get(series, {})):
            for name, why in reasons.items():
                print(f"Django {leg.release:8} expected to fail: {name.rpartition('.')[2]}: {why}")
    for line in wrong:
        print(f"NOT AS EXPECTED: {line}")
    return 1 if wrong else 0


def run_leg(leg: Leg, store: str, url: str) -> list[str]:
    """Run the three suites of one release on one store; returns what is not as expected."""
    wrong: list[str] = []
    ran, broken = suite(leg, "django", url)
    if ran < LEAST[leg.series]:
        wrong.append(f"Django {leg.release}: {ran} tests, expected at least {LEAST[leg.series]}")
    known = WITHOUT_WINCH.get(leg.series, {})
    wrong += [f"{leg.release} without Winch: {one}" for one in sorted(broken - known.keys())]
    for name, expected in EXPECTED.items():
        ran, failed = suite(leg, name, url)
        new = sorted(failed - broken)
        passed = ran - len(new) - len(failed & broken)
        extra = f", {len(failed & broken)} fail without Winch too" if failed & broken else ""
        print(f"Django {leg.release:8} {store:9} {name:10} {passed} of {ran} pass{extra}", flush=True)
        wrong += [f"{leg.release} {store} {name}: {one}" for one in new if one not in expected]
        wrong += [
            f"{leg.release} {store} {name}: {one} passes now" for one in expected if one not in failed
        ]
    return wrong


def own_tests(leg: Leg, store: str, url: str) -> list[str]:
    """Run the tests of the backend and of the example shop with this release of Django."""
    words = ["-m", "examples.django_shop.manage", "test", "--noinput", *OWN]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [leg.python, *words, "examples.django_shop"],
            env={
                **os.environ,
                "SHOP_FOLDER": folder,
                "SHOP_DATABASE": url if store == "postgres" else "",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            cwd=ROOT,
        )
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    print(
        f"Django {leg.release:8} {store:9} own tests  {'fail' if done.returncode else 'pass'}"
        f" ({ran[1] if ran else 0})",
        flush=True,
    )
    return [f"{leg.release} {store} own tests: {done.stderr}"] if done.returncode or not ran else []


def under_pytest_django(leg: Leg) -> list[str]:
    """Run the example shop's tests for pytest-django."""
    tests = ROOT / "tests" / "django" / "with_pytest_django.py"
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [leg.python, *words, f"--rootdir={ROOT}", "--ds=examples.django_shop.settings", tests],
            env={**os.environ, "PYTHONPATH": str(ROOT), "SHOP_FOLDER": folder},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            cwd=ROOT,
        )
    last = done.stdout.strip().rpartition("\n")[2]
    print(f"Django {leg.release:8} pytest-django: {last}", flush=True)
    return [] if last.startswith("2 passed") else [f"pytest-django: {done.stdout}{done.stderr}"]


def suite(leg: Leg, name: str, url: str) -> tuple[int, set[str]]:
    """How many tests ran, and which failed."""
    done = subprocess.run(
        [leg.python, ROOT / "scripts" / "django_tests.py", leg.tests, url, name, leg.api],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        cwd=BUILD,
    )
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or not last.startswith("{"):
        raise SystemExit(f"{leg.release} {name} did not run:\n{done.stdout}\n{done.stderr}")
    found = json.loads(last)
    return found["run"], set(found["failed"])


# -- environments --------------------------------------------------------------------------------------


def prepared(series: str) -> Leg:
    """An environment with the newest release of the series, and that release's tests."""
    BUILD.mkdir(parents=True, exist_ok=True)
    is_old = series == "5.2"
    base = Path(sys.executable) if is_old else python312()
    # Django's tests of its tasks begin with 6.0; for 5.2 they run against the package django-tasks.
    source = newest_source("6.0" if is_old else series)
    release = source.name.partition("-")[2]
    folder = BUILD / f"venv-{series}"
    python = folder / "bin" / "python"
    wanted = ["Django==5.2.*", "django-tasks"] if is_old else [f"Django=={release}"]
    wanted.append("pytest-django")
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text() != " ".join(wanted):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([base, "-m", "venv", folder], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*install, *wanted, "-e", f"{ROOT}[postgres,redis,web]"], check=True)
        stamp.write_text(" ".join(wanted))
    if not is_old:
        return Leg(series, release, python, source / "tests", "django.tasks")
    version = "import django; print(django.__version__)"
    found = subprocess.run([python, "-c", version], capture_output=True, text=True, check=True)
    return Leg(series, found.stdout.strip(), python, backported(source), "django_tasks")


def newest_source(series: str) -> Path:
    """The newest source release of the series, downloaded and unpacked."""
    held = BUILD / "sdist"
    held.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        command = [str(python312()), "-m", "pip", "download", "-q", "--disable-pip-version-check"]
        command += ["--no-deps", "--no-binary", ":all:", "-d", folder, f"Django=={series}.*"]
        subprocess.run(command, check=True)
        [archive] = Path(folder).glob("*.tar.gz")
        name = archive.name.removesuffix(".tar.gz")
        if not (held / name).exists():
            with tarfile.open(archive) as packed:
                packed.extractall(held, filter="data")
    return held / name


def backported(source: Path) -> Path:
    """The same tests for the package django-tasks, whose names differ: written beside the download."""
    folder = BUILD / f"{source.name}-backport"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source / "tests" / "tasks", folder / "tasks")
    for path in (folder / "tasks").glob("*.py"):
        text = path.read_text().replace("django.tasks", "django_tasks")
        text = re.sub(r"\bInvalidTask\b", "InvalidTaskError", text)
        path.write_text(re.sub(r"\bInvalidTaskBackend\b", "InvalidTaskBackendError", text))
    return folder


def python312() -> Path:
    """A Python that Django 6 runs on; fails where there is none: this is never skipped."""
    named = os.environ.get("WINCH_PYTHON312")
    if named:
        return Path(named)
    if sys.version_info >= (3, 12):
        return Path(sys.executable)
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for pattern in ("3.12.*", "3.13.*", "3.14.*"):
        for folder in sorted(kept.glob(pattern)):
            if (folder / "bin" / "python").exists():
                return folder / "bin" / "python"
    for name in ("python3.12", "python3.13", "python3.14"):
        if found := shutil.which(name):
            return Path(found)
    raise SystemExit("Django 6 needs Python 3.12: set $WINCH_PYTHON312, or have one in pyenv or on PATH")


# -- stores --------------------------------------------------------------------------------------------


@contextmanager
def stores(names: Sequence[str]) -> Iterator[Iterator[tuple[str, str]]]:
    """The stores of one release, each empty: their names and addresses."""
    with ExitStack() as stack:

        def opened() -> Iterator[tuple[str, str]]:
            for name in names:
                yield name, address(name, stack)

        yield opened()


def address(name: str, stack: ExitStack) -> str:
    """The address of an empty store."""
    if name == "memory":
        return "memory://"
    if name == "sqlite":
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        return f"sqlite:///{folder}/winch.db"
    if name == "postgres":
        from tests.servers import PostgresServer

        return stack.enter_context(PostgresServer()).new_database()
    from tests.redis_servers import RedisServer

    return stack.enter_context(RedisServer()).url


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
