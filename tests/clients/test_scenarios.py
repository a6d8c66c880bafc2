"""The scenarios of clients/scenarios. `make test`: the Python client plays the quick ones on SQLite.
Everything else is slow and belongs to `make clients`: all scenarios, every SDK, three stores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scripts.clients import play_all, scenarios
from tests.clients.languages import ROOT, languages
from tests.clients.play import Failed, Scenario, play
from tests.clients.stage import Stage
from tests.clients.values import ScenarioError, filled, misfit

LEAST_SCENARIOS = 40


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("clients"))
    yield made
    made.close()


def test_every_file_is_readable_and_declares_expectations() -> None:
    found = scenarios()
    assert len(found) >= LEAST_SCENARIOS
    assert len({one.name for one in found}) == len(found)
    for one in found:
        text = json.dumps(one.steps)
        assert any(word in text for word in ('"is"', '"expect"', '"error"', '"count"')), one.file
        assert "server" not in {key for step in one.steps for key in step} or one.server == "own"


def test_the_python_client_plays_the_quick_scenarios(stage: Stage) -> None:
    quick = [one for one in scenarios() if one.is_quick]
    assert len(quick) >= 20
    failures = play_all(quick, [languages()["python"]], ["sqlite"], 10, stage)
    assert len(failures) == len(quick)
    wrong = [text for text in failures.values() if text is not None]
    assert not wrong, "\n\n".join(wrong)


def test_a_wrong_result_is_noticed(stage: Stage, tmp_path: Path) -> None:
    """The harness can fail: what an SDK must not do is reported with its step."""
    steps = [
        {"sdk": "enqueue", "task": "${task}", "args": {"n": 1}, "save": "job"},
        {"sdk": "worker.start", "worker": "w", "tasks": {"${task}": {"run": [{"return": 1}]}}},
        {"sdk": "result", "job": "${job}", "expect": 2},
    ]
    with pytest.raises(Failed, match=r"step 3 of wrong.*\n.*value is 1, wanted 2"):
        play(_written(tmp_path, steps), languages()["python"], stage, "sqlite")


def test_a_secret_in_the_log_is_noticed(stage: Stage, tmp_path: Path) -> None:
    steps = [
        {"new_token": {"roles": ["read"]}, "save": "t"},
        {"sdk": "worker.start", "worker": "w", "tasks": {"${task}": {"run": [{"mark": "${t.text}"}]}}},
        {"sdk": "enqueue", "task": "${task}", "save": "job"},
        {"event": {"event": "mark", "job": "${job}"}},
    ]
    with pytest.raises(Failed, match="a secret"):
        play(_written(tmp_path, steps), languages()["python"], stage, "sqlite")


def _written(folder: Path, steps: list[object]) -> Scenario:
    path = folder / "wrong.json"
    path.write_text(json.dumps({"name": "wrong", "tasks": {"${task}": {}}, "steps": steps}))
    return Scenario.read(path)


@pytest.mark.parametrize(
    "wanted, found, fits",
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"b": 2}, False),
        ([1, 2], [1], False),
        (True, 1, False),
        (1, 1.0, True),
        ({"$match": "^x"}, "xy", True),
        ({"$match": "^x"}, None, False),
        ({"$has": [{"a": 1}]}, [{"a": 2}, {"a": 1}], True),
        ({"$has": [{"a": 3}]}, [{"a": 2}, {"a": 1}], False),
        ({"$least": 2, "$most": 3}, 4, False),
        ({"$length": {"$least": 1}}, [], False),
        ({"$not": {"a": 1}}, {"a": 1}, False),
        ({"$in": [1, 2]}, 2, True),
        ({"$sorted": ["b", "a"]}, ["a", "b"], True),
    ],
)
def test_expectations(wanted: object, found: object, fits: bool) -> None:
    assert (misfit(wanted, found) is None) is fits


def test_variables_keep_their_type_and_unknown_ones_are_refused() -> None:
    variables = {"ids": ["a", "b"], "job": {"n": 1}}
    assert filled(["${job}", "x${ids.1}", "${job.n}"], variables) == [{"n": 1}, "xb", 1]
    with pytest.raises(ScenarioError, match=r"no variable \$\{nothing\}"):
        filled("${nothing}", variables)


def test_a_rule_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ScenarioError, match="no rule"):
        misfit({"$matches": "x"}, "x")


@pytest.mark.slow
def test_every_sdk_on_every_store() -> None:
    """`make clients`, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.clients"],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]


def test_scenarios_play_side_by_side(stage: Stage) -> None:
    """Scenarios share a store: each has names of its own, so two runs of one at a time do no harm."""
    [one] = [found for found in scenarios() if found.file == "unique"]
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(play, one, languages()["python"], stage, "sqlite") for _ in range(2)]
        assert all(run.result() > 0 for run in runs)
