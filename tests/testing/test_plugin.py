"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

APP = """
import winch

app = winch.App()

@app.task
def add(a: int, b: int) -> int:
    return a + b
"""

TESTS = """
from shop import add
from winch.testing import assert_enqueued

def test_world(winch_world):
    job = add.using(delay="1d").enqueue(1, 2)
    assert_enqueued(add, 1, delay="1d")
    winch_world.advance("1d")
    assert job.result() == 3

def test_inline(winch_inline):
    assert add.enqueue(1, 2).state == "completed"

def test_each_test_has_a_world_of_its_own(winch_world):
    assert winch_world.jobs() == []
"""


def run(pytester: pytest.Pytester) -> pytest.RunResult:
    # In a process: the plugin is found by its entry point, and nothing of this run is in the way.
    return pytester.runpytest_subprocess("-W", "error", "-p", "no:anyio", "-p", "no:valkey")


def test_fixtures_use_the_app_that_the_configuration_names(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nwinch_app = shop:app\npythonpath = .\n")
    pytester.makepyfile(shop=APP, test_shop=TESTS)
    run(pytester).assert_outcomes(passed=3)
    assert not (pytester.path / "winch.db").exists()


def test_the_app_fixture_can_be_overridden(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\npythonpath = .\n")
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def winch_app():
            from shop import app
            return app
        """
    )
    pytester.makepyfile(shop=APP, test_shop=TESTS)
    run(pytester).assert_outcomes(passed=3)


@pytest.mark.parametrize(
    "value, message",
    [
        ("", "*set winch_app = module:app in pytest's configuration*got ''*"),
        ("shop:add", "*add is not a winch.App but <Task shop.add>*"),
    ],
)
def test_a_missing_or_wrong_app_is_an_error(pytester: pytest.Pytester, value: str, message: str) -> None:
    pytester.makeini(f"[pytest]\nwinch_app = {value}\npythonpath = .\n")
    pytester.makepyfile(shop=APP, test_shop="def test(winch_world): ...")
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])


def test_loading_the_plugin_imports_nothing_of_the_engine() -> None:
    look = (
        "import sys, pytest; before = set(sys.modules); import winch.testing.plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["winch", "winch.testing", "winch.testing.plugin"]
