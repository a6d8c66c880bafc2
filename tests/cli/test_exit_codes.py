"""Exit codes and the one line that goes with each."""

from __future__ import annotations

import pytest

from tests.cli.command import Answer, Command, start_session
from winch import App

ABSENT = "01890a5d-ac96-774b-bcce-b302099a8057"


def is_one_line(answer: Answer) -> bool:
    lines = answer.err.splitlines()
    return len(lines) == 1 and lines[0].startswith("winch: ") and "Traceback" not in answer.err


@pytest.mark.parametrize(
    "args, reason",
    [
        (["job"], "did you mean 'jobs'?"),
        (["frobnicate"], "no such command: 'frobnicate'; there are worker, enqueue, jobs"),
        (["jobs", "lst"], "list"),
        (["jobs", "list", "--limt", "3"], "--limit"),
        (["jobs", "list", "--limit", "0"], "0 is not in the range"),
        (["jobs", "list", "--state", "daed"], "did you mean 'dead'?"),
        (["jobs", "cancel"], "missing argument 'ID...'"),
        (["dead", "replay"], "choose the dead jobs"),
        (["dead", "purge", "--older-than", "30"], "--older-than must look like"),
        (["enqueue", "shop.add", "--timeout", "1s"], "--timeout goes with --wait"),
        (["queues", "pause", "a,b"], "queue must not contain ','"),
        (["-A", "nowhere:app", "jobs", "list"], "no module named 'nowhere'"),
        (["--config", "none.toml", "config"], "'none.toml' does not exist"),
        (["--url", "mysql://x", "stats"], "got scheme 'mysql'"),
        (["worker"], "no app given"),
    ],
)
def test_wrong_usage_exits_2(winch: Command, app: App, args: list[str], reason: str) -> None:
    answer = winch(*args)
    assert (answer.code, answer.out) == (2, "")
    assert reason in answer.err
    assert is_one_line(answer)


def test_no_arguments_show_the_help_and_exit_2(winch: Command) -> None:
    answer = winch()
    assert answer.code == 2
    assert "Commands:" in answer.err


def test_version_and_help_exit_0(winch: Command) -> None:
    assert winch("--version").out.startswith("winch 0.")
    assert winch("jobs", "-h").code == 0


@pytest.mark.parametrize(
    "args",
    [["jobs", "show"], ["jobs", "cancel"], ["jobs", "retry"], ["why"], ["dead", "show"]],
)
def test_absent_job_exits_1(winch: Command, app: App, args: list[str]) -> None:
    answer = winch(*args, ABSENT)
    assert answer.code == 1
    assert f"no job with id '{ABSENT}'" in answer.err
    assert is_one_line(answer)


def test_an_id_that_is_none_exits_1(winch: Command, app: App) -> None:
    answer = winch("jobs", "show", "7")
    assert (answer.code, "no job with id '7'" in answer.err) == (1, True)


def test_impossible_transition_exits_1_and_the_others_go_on(winch: Command, app: App) -> None:
    first, second = app.tasks.get("shop.add").enqueue(1), app.tasks.get("shop.add").enqueue(2)
    first.cancel()
    answer = winch("jobs", "cancel", first.id, second.id, "--reason", "enough")
    assert answer.code == 1
    assert "is cancelled; cancel needs one of" in answer.err
    assert answer.out == f"{second.id}  cancelled (was ready)\n"
    assert second.refresh().record.reason == "enough"


@pytest.mark.parametrize(
    "args",
    [["jobs", "list"], ["stats"], ["queues", "list"], ["workers", "list"], ["migrate", "--check"]],
)
def test_store_without_schema_exits_4(winch: Command, args: list[str]) -> None:
    answer = winch(*args)
    assert answer.code == 4
    assert "winch migrate" in answer.out + answer.err
    assert not (winch.folder / "winch.db").exists(), "looking must not create the file"


def test_migrate_makes_the_store_ready(winch: Command) -> None:
    assert "CREATE TABLE" in winch("migrate", "--sql").out
    first = winch("migrate", "--json")
    assert first.code == 0
    assert first.json["steps"]
    assert winch("migrate", "--json").json["steps"] == []
    assert winch("migrate", "--check", "--json").json["is_ready"] is True
    assert winch("health").code == 0


def test_no_live_worker_exits_69(winch: Command, app: App) -> None:
    answer = winch("workers", "list", "--json")
    assert (answer.code, answer.json) == (69, {"workers": []})
    start_session(app, tasks=("shop.add",))
    assert winch("workers", "list").code == 0


def test_health_exits_1_and_names_the_failing_check(winch: Command, app: App) -> None:
    answer = winch("health", "--workers", "1", "--json")
    assert answer.code == 1
    assert answer.json["checks"]["workers"]["status"] == "fail"
    assert winch("health", url="sqlite:///other.db").code == 1


def test_traceback_is_shown_only_with_two_v_options(winch: Command, app: App) -> None:
    assert "Traceback" not in winch("-v", "why", ABSENT).err
    assert "Traceback" in winch("why", ABSENT, "-vv").err


def test_closed_pipe_is_no_error(winch: Command, app: App) -> None:
    import subprocess
    import sys

    for number in range(3):
        app.tasks.get("shop.add").enqueue(number)
    command = f"{sys.executable} -m winch --url {winch.url} jobs list | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("0", "141")
    assert done.stderr == ""


@pytest.mark.parametrize("mode", [[], ["--burst"]])
def test_a_worker_whose_store_cannot_be_used_exits_3(winch: Command, mode: list[str]) -> None:
    winch.shop()
    (winch.folder / "taken").write_text("a file where a folder is needed")
    answer = winch("worker", "-A", "shop:app", *mode, url=f"sqlite:///{winch.folder}/taken/winch.db")
    assert answer.code == 3, answer.err
    reasons = [line for line in answer.err.splitlines() if line.startswith("winch: ")]
    assert len(reasons) == 1, "it is reported once, not once a try"
    assert "children cannot be started (exit code 3); stopping" in answer.err
