"""What `winch worker` writes to its log: its identity, failures, and the summary of a burst."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from datetime import datetime

import pytest

from tests.cli.command import Answer, Command
from winch import App
from winch.cli.run.worker import ShownOnce


@pytest.fixture
def burst(winch: Command, app: App) -> Answer:
    """A burst over two good jobs and a bad one, of an app whose tasks use two queues."""
    winch.shop()
    for number in range(2):
        winch("enqueue", "shop.add", "-A", "shop:app", "--args", json.dumps({"a": number}))
    winch("enqueue", "shop.mail", "-A", "shop:app", "--args", '{"to": "Ada"}')
    return winch("worker", "-A", "shop:app", "--burst", "-Q", "*", "-c", "2")


def test_a_worker_announces_what_it_serves(winch: Command, burst: Answer) -> None:
    assert burst.code == 0, burst.err
    [line] = [line for line in burst.err.splitlines() if "; queues " in line]
    assert re.search(r"winch \d+\.\d+\.\d+: shop:app on sqlite:///", line)
    assert line.endswith("queues default, mail; 2 tasks; 1 process of 2 slots")
    stamp = line.split()[0]
    assert datetime.fromisoformat(stamp).tzinfo is not None, stamp


def test_a_failed_attempt_is_one_line_and_its_traceback(burst: Answer) -> None:
    lines = burst.err.splitlines()
    assert "; queues " in lines[0], "the worker announces itself before it runs a job"
    [at] = [number for number, line in enumerate(lines) if " failed: " in line]
    assert lines[at].endswith("attempt 1 failed: ValueError: mailbox of Ada is full; dead")
    traceback = "\n".join(lines[at + 1 : at + 8])
    assert "Traceback (most recent call last)" in traceback
    assert 'raise ValueError("mailbox of "' in traceback


def test_a_burst_ends_with_a_summary(burst: Answer) -> None:
    assert re.search(
        r"burst over after \d+\.\d s: 2 completed, 0 failed attempts, 1 dead, 0 cancelled", burst.err
    ), burst.err


def test_queues_that_no_worker_serves_are_warned_of(winch: Command, app: App) -> None:
    winch.shop()
    answer = winch("worker", "-A", "shop:app", "--burst")
    assert (
        "no live worker serves queue 'mail', which task shop.mail uses: its jobs wait; "
        "serve it with -Q default,mail or with -Q '*'" in answer.err
    )
    everything = winch("worker", "-A", "shop:app", "--burst", "-Q", "*")
    assert "no live worker serves" not in everything.err


def test_a_burst_runs_the_jobs_that_are_due_when_it_starts(winch: Command, app: App) -> None:
    winch.shop()
    winch("enqueue", "shop.add", "-A", "shop:app", "--args", '{"a": 1}', "--delay", "100ms")
    time.sleep(0.2)
    assert ": 1 completed" in winch("worker", "-A", "shop:app", "--burst").err


def test_all_queues_but_one(winch: Command, app: App) -> None:
    winch.shop()
    answer = winch("worker", "-A", "shop:app", "--burst", "-Q", "*,-mail")
    assert "; queues default; " in answer.err


def test_a_line_that_the_application_has_written_is_not_written_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own, ours = logging.StreamHandler(sys.stderr), logging.StreamHandler(sys.stderr)
    own.setLevel(logging.INFO)
    ours.addFilter(ShownOnce())
    root, parent = logging.getLogger(), logging.getLogger("shop_log")
    child = logging.getLogger("shop_log.mail")
    parent.setLevel(logging.DEBUG)
    parent.addHandler(own)
    root.addHandler(ours)
    try:
        child.info("one")
        child.debug("two")  # below the level of the application's handler
        logging.getLogger("elsewhere").warning("three")
        own.addFilter(lambda record: "four" not in record.getMessage())
        child.info("four")
    finally:
        root.removeHandler(ours)
        parent.removeHandler(own)
    assert capsys.readouterr().err.split() == ["one", "two", "three", "four"]
