"""The example shop under its own tests, and under faults, on PostgreSQL and SQLite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.django_suite import OWN

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("WINCH_KILL_ROUNDS", "100"))


def manage(*words: str, folder: Path, database: str = "") -> str:
    """Run a command of the shop; returns what it prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("WINCH_")}
    env |= {"SHOP_FOLDER": str(folder), "SHOP_DATABASE": database}
    done = subprocess.run(
        [sys.executable, "-m", "examples.django_shop.manage", *words],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_shop_passes_its_own_tests_on_sqlite(tmp_path: Path) -> None:
    assert "OK" in manage("test", "--noinput", "examples.django_shop", folder=tmp_path)


@pytest.mark.servers
@pytest.mark.parametrize(
    "extra",
    [
        pytest.param((), id="alone", marks=pytest.mark.slow),
        pytest.param(("--parallel", "2"), id="parallel"),
    ],
)
def test_the_shop_passes_its_own_tests_on_postgres(
    extra: tuple[str, ...], tmp_path: Path, empty_postgres_url: str
) -> None:
    words = ("test", "--noinput", "examples.django_shop", *extra)
    printed = manage(*words, folder=tmp_path, database=empty_postgres_url)
    assert "OK" in printed
    assert "skipped" not in printed


# The commands that need no process of their own share one: Django takes half a second to start.
BEFORE = """
from django.core.management import call_command
from django.test import Client
def check(title):
    print("==", title)
    call_command("check", databases=["default"])
check("empty")
call_command("winch", "migrate")
call_command("migrate", verbosity=0)
check("migrated")
print(Client().post("/orders", {"number": "1"}).content)
check("unserved")
"""
AFTER = """
from django.core.management import call_command
from django.test import Client
print(Client().get("/orders/1").content)
call_command("winch", "prune")
"""


@pytest.mark.servers
def test_manage_py_migrates_checks_and_runs_a_worker(tmp_path: Path, empty_postgres_url: str) -> None:
    def shop(*words: str) -> str:
        return manage(*words, folder=tmp_path, database=empty_postgres_url)

    printed = shop("shell", "-v", "0", "-c", f"import sys; sys.stderr = sys.stdout{BEFORE}")
    empty, migrated, unserved = printed.split("== ")[1:]
    assert "winch.W001" in empty
    assert "applied" in empty
    assert "winch." not in migrated
    assert '"number": "1"' in migrated
    assert "winch.W002" in unserved
    assert "jobs wait in mail, which no worker serves" in unserved
    shop("winch", "worker", "--queue-name", "*", "--exclude-queues", "default", "--batch")
    done = shop("shell", "-v", "0", "-c", AFTER)
    assert '"status": "SUCCESSFUL"' in done
    assert "deleted 0 jobs" in done
    assert "forget_old_orders" in shop("winch", "schedules", "list")


def run_module(name: str, *words: str) -> dict[str, Any]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("WINCH_", "SHOP_"))}
    done = subprocess.run(
        [sys.executable, "-m", name, *words],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.rpartition("\n")[2])
    return found


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.servers
def test_a_web_process_killed_around_commit_loses_no_job(empty_postgres_url: str) -> None:
    found = run_module("tests.django.kills", empty_postgres_url, str(ROUNDS))
    assert sum(found["kills"].values()) == ROUNDS
    assert all(found["kills"].get(phase, 0) > 0 for phase in ("before", "during", "after")), found
    assert (found["lost"], found["orphans"]) == ([], [])
    assert found["orders"] == found["jobs"] == found["receipts"] > 0
    assert found["without_receipt"] == 0


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.servers
def test_no_job_dies_of_terminated_connections(empty_postgres_url: str) -> None:
    found = run_module("tests.django.terminated", empty_postgres_url, "500")
    assert found["states"] == {"completed": 500}
    # A lost connection fails the attempt that uses it, and none after it.
    assert 0 < found["failed"] <= found["terminated"]
    assert found["receipts"] == found["counted"] == 500


@pytest.mark.faults
@pytest.mark.servers
def test_no_coroutine_of_a_plain_task_dies_of_terminated_connections(empty_postgres_url: str) -> None:
    found = run_module("tests.django.coroutines", empty_postgres_url, "6")
    assert found["states"] == ["completed"] * 6
    assert found["terminated"] >= 5
    assert found["used_before"] == [False]  # a coroutine without a query keeps its fast path


def test_a_task_that_ends_without_its_function_is_known_to_django(tmp_path: Path) -> None:
    found = run_module("tests.django.crashed", str(tmp_path))
    assert found["results"] == {
        "dies": ["FAILED", ["winch.JobCrashed"] * 3],
        "hangs": ["FAILED", ["winch.JobTimeout"]],
        "raises": ["FAILED", ["builtins.ValueError"]],
        "works": ["SUCCESSFUL", []],
    }
    # Each end is announced once, by the worker or by the process of the function.
    assert found["ends"] == ["dies FAILED", "hangs FAILED", "raises FAILED", "works SUCCESSFUL"]
    # The others run in processes of their own, where their start is announced.
    assert found["signals"] == [
        ["finished", "dies", "FAILED", False],
        ["finished", "hangs", "FAILED", False],
        ["finished", "raises", "FAILED", False],
        ["finished", "works", "SUCCESSFUL", True],
        ["started", "works", "RUNNING", True],
    ]


def test_the_backend_passes_its_suite(tmp_path: Path) -> None:
    assert "OK" in manage("test", "--noinput", *OWN, folder=tmp_path)
