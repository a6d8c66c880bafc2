"""`winch move` between two files: the dry run, the move, the cut-over, the way back, what it refuses."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.cli.command import Command, start_session
from winch import App
from winch.engine.moving.mover import Mover

KEY = f"k1:{base64.b64encode(b'1' * 32).decode()}"


@pytest.fixture
def target(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'target.db'}"
    App(url).migrate()
    return url


def enqueued(winch: Command, *numbers: int, **env: str) -> list[str]:
    return [
        winch("enqueue", "shop.add", "--args", f'{{"a": {n}}}', "-A", "shop:app", **env).out.strip()
        for n in numbers
    ]


def test_it_moves_and_is_cut_over(winch: Command, app: App, target: str) -> None:
    winch.shop()
    before = enqueued(winch, 1, 2)
    dry = winch("move", "--to", target, "--dry-run", "--json")
    assert dry.code == 0, dry.err
    assert (dry.json["by_state"], dry.json["refused"]) == ({"ready": 2}, [])
    assert len(winch("jobs", "list", "--json").json["jobs"]) == 2, "a dry run moves nothing"
    moved = winch("move", "--to", target, "--yes")
    assert moved.code == 0, moved.err
    assert "producers were held for" in moved.out
    after = enqueued(winch, 3, WINCH_MOVE_TO=target)
    assert winch("jobs", "list", "--json").json["jobs"] == []
    there = {job["id"] for job in winch("jobs", "list", "--json", url=target).json["jobs"]}
    assert there == {*before, *after}
    shown = winch("jobs", "show", before[0], "--json", WINCH_MOVE_TO=target)
    assert shown.json["state"] == "ready"
    done = winch("move", "--cutover", WINCH_MOVE_TO=target)
    assert done.code == 0, done.err
    assert "set url to" in done.out
    actions = {line["action"] for line in winch("audit", "--json").json["lines"]}
    assert {"begin move", "cut move over"} <= actions
    assert winch("worker", "-A", "shop:app", "--burst", url=target).code == 0
    assert winch("jobs", "show", after[0], "--json", url=target).json["result"] == 3


def test_move_back_returns_every_job(winch: Command, app: App, target: str) -> None:
    winch.shop()
    [first] = enqueued(winch, 1)
    assert winch("move", "--to", target, "--yes").code == 0
    [second] = enqueued(winch, 2, WINCH_MOVE_TO=target)
    back = winch("move", "--to", target, "--back")
    assert back.code == 0, back.err
    assert {job["id"] for job in winch("jobs", "list", "--json").json["jobs"]} == {first, second}
    assert winch("jobs", "list", "--json", url=target).json["jobs"] == []
    assert "take move back" in winch("audit").out
    assert winch("worker", "-A", "shop:app", "--burst").code == 0
    assert winch("jobs", "show", second, "--json").json["state"] == "completed"


def test_json_is_all_that_it_prints(winch: Command, app: App, target: str) -> None:
    winch.shop()
    enqueued(winch, 1)
    assert winch("move", "--to", target, "--yes", "--json").json == {"step": "free"}
    assert winch("move", "--to", target, "--cutover", "--json").json == {"step": "done"}
    assert winch("move", "--to", target, "--resume", "--json").json == {"step": "done"}


def test_encrypted_jobs_stay_encrypted_and_run(winch: Command, app: App, target: str) -> None:
    winch.shop()
    [job] = enqueued(winch, 40771, WINCH_KEYS=KEY)
    assert winch("move", "--to", target, "--yes").code == 0
    assert "40771" not in winch("jobs", "show", job, url=target).out
    assert winch("worker", "-A", "shop:app", "--burst", url=target, WINCH_KEYS=KEY).code == 0
    shown = winch("jobs", "show", job, "--json", "--reveal", url=target, WINCH_KEYS=KEY).json
    assert (shown["state"], shown["result"]) == ("completed", 40771)


def test_it_refuses_before_it_touches_anything(winch: Command, app: App, target: str) -> None:
    winch.shop()
    enqueued(winch, 1)
    assert winch("enqueue", "shop.add", "--args", '{"a": 9}', "-A", "shop:app", url=target).code == 0
    refused = winch("move", "--to", target, "--yes")
    assert (refused.code, refused.out) == (2, "")
    assert "nothing was moved" in refused.err
    assert "already has live jobs" in refused.err
    assert Mover(app.ready(), app.ready()).route() is None


def test_a_target_of_an_earlier_release_is_refused(winch: Command, app: App, target: str) -> None:
    older = App(target)
    start_session(older, tasks=("shop.add",), release="0.0.9")
    refused = winch("move", "--to", target, "--yes")
    assert refused.code == 2
    assert "runs Winch 0.0.9, which is older" in refused.err
    older.close()


def test_jobs_that_reach_the_source_late_are_moved(winch: Command, app: App, target: str) -> None:
    winch.shop()
    enqueued(winch, 1)
    assert winch("move", "--to", target, "--yes").code == 0
    second = winch("move", "--to", target, "--yes")
    assert (second.code, "already moves to" in second.err) == (2, True)
    assert winch("move", "--to", target, "--cutover").code == 0
    [late] = enqueued(winch, 2)  # of a process that has no move_to
    assert winch("move", "--to", target, "--resume").code == 0
    assert winch("jobs", "list", "--json").json["jobs"] == []
    assert winch("jobs", "show", late, "--json", url=target).json["state"] == "ready"
    for flag in ("--cutover", "--back"):
        again = winch("move", "--to", target, flag)
        assert (again.code, "was cut over to" in again.err) == (2, True)


def test_move_needs_a_target_and_a_confirmation(winch: Command, app: App, target: str) -> None:
    assert "--to URL" in winch("move").err
    assert winch("move", "--to", target).code == 2
    nothing = winch("move", "--to", target, "--resume")
    assert (nothing.code, "no move is under way" in nothing.err) == (2, True)
    assert winch("move", "--to", target, "--resume", "--back").code == 2


def test_both_urls_may_name_one_store_once_the_move_is_over(
    winch: Command, app: App, target: str
) -> None:
    """A shell or a deployment that has the new URL, and still has WINCH_MOVE_TO."""
    winch.shop()
    [job] = enqueued(winch, 1)
    assert winch("move", "--to", target, "--yes").code == 0
    assert winch("jobs", "show", job, "--url", target, WINCH_MOVE_TO=target).code == 0
    assert winch("schedules", "list", "--json", url=target, WINCH_MOVE_TO=target).code == 0
    itself = winch("move", "--to", target, "--yes", url=target)
    assert (itself.code, "--to names the store that the jobs are in" in itself.err) == (2, True)


def test_doctor_names_the_move_that_ends_a_pause(winch: Command, app: App, target: str) -> None:
    winch.shop()
    enqueued(winch, 1)
    app.schedules.add("s", task="shop.add", every="1h", args={"a": 1})
    assert winch("move", "--to", target, "--yes").code == 0
    found = winch("doctor", "--json").json["findings"]
    assert of_move(winch) == f"everything moves to {target}: step free; 0 live jobs in this store"
    advice = [one["advice"] for one in found if "winch move" in one["text"]]
    assert len(advice) == 2
    assert all(one.startswith("winch move --back ends it") for one in advice)
    assert winch("move", "--to", target, "--cutover").code == 0
    assert of_move(winch) == f"everything has moved to {target}"
    enqueued(winch, 2)
    assert of_move(winch) == f"everything has moved to {target}, and this store has 1 live job again"


def of_move(winch: Command) -> str:
    [move] = [one for one in winch("doctor", "--json").json["findings"] if one["subject"] == "move"]
    text: str = move["text"]
    return text
