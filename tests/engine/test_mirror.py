"""Workflows, flows and schedules on Redis, answer for answer as on the reference; see mirror.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import test_examples
from tests.engine.mirror import mirrored

ROOT = Path(__file__).parents[2]
# It reaches into the reference's own memory.
NOT_THERE = "not cannot_be_read"
MIRRORED = ("flows", "batches", "waiting", "steps", "compensation", "schedules", "idempotency")


@pytest.mark.servers
def test_the_examples_run_on_redis() -> None:
    with mirrored() as store:
        test_examples.test_a_checkout_that_is_approved_is_packed()
        test_examples.test_a_checkout_that_fails_is_undone(
            {"ok": True}, ["lost"], ["charge 8", "refund ch-8"]
        )
        test_examples.test_a_report_is_bound_and_its_audit_raises_an_alarm()
        assert store.calls > 100


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("module", MIRRORED)
def test_all_worlds_of_a_module_stand_on_redis(module: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.engine.mirror", "-q", "-x"),
            *("-k", NOT_THERE, f"tests/engine/test_{module}.py"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
