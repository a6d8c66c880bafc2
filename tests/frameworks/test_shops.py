"""The example shops: their own tests, and a kill under a real web server. See `make frameworks`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.shops import ROOT, SERVERS, Shop, play

FRAMEWORKS = ("fastapi", "flask", "litestar")


def own_tests(framework: str, url: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("WINCH_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"examples/{framework}_shop"],
        cwd=ROOT,
        env={**env, "SHOP_URL": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_shop_passes_its_own_tests_on_sqlite(framework: str, tmp_path: Path) -> None:
    own_tests(framework, f"sqlite:///{tmp_path / 'shop.db'}")


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_shop_passes_its_own_tests_on_postgres(framework: str, empty_postgres_url: str) -> None:
    own_tests(framework, empty_postgres_url)


def killed(framework: str, server: str, url: str, folder: Path) -> None:
    books = play(Shop(framework, server, url, folder), kills=1, orders=12)
    assert books.wrong == []
    assert books.unanswered  # the kill met requests
    assert books.orders >= len(books.accepted)


@pytest.mark.faults
def test_the_books_of_a_killed_shop_balance_on_sqlite(tmp_path: Path) -> None:
    killed("fastapi", "uvicorn", f"sqlite:///{tmp_path / 'shop.db'}", tmp_path)


@pytest.mark.faults
@pytest.mark.servers
def test_the_books_of_a_killed_shop_balance_on_postgres(tmp_path: Path, empty_postgres_url: str) -> None:
    killed("flask", "gunicorn", empty_postgres_url, tmp_path)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.servers
@pytest.mark.parametrize("framework, server", SERVERS)
def test_the_books_of_every_killed_shop_balance(
    framework: str, server: str, tmp_path: Path, empty_postgres_url: str
) -> None:
    killed(framework, server, empty_postgres_url, tmp_path)
