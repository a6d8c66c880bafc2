"""What each command does and prints."""

from __future__ import annotations

import contextlib
import os
import pty
import sqlite3
import subprocess
import sys
from datetime import datetime, timedelta

import pytest

from tests.cli.command import Command, start_session
from winch import App
from winch.drivers.sqlite.connections.opening import has_wal_reset_bug


def die(app: App, *names: str) -> list[str]:
    """Jobs that a real worker has run until they were dead."""
    ids = [app.tasks.get("shop.mail").enqueue(name).id for name in names]
    app.run_worker(burst=True)
    return ids


# -- looking -----------------------------------------------------------------------------------------


def test_lists_are_filtered_and_paged(winch: Command, app: App) -> None:
    add = app.tasks.get("shop.add")
    ids = [add.using(tags=["x"], delay="1h").enqueue(n).id for n in range(5)]
    add.enqueue(9)
    first = winch("jobs", "list", "--state", "scheduled", "--tag", "x", "--limit", "3", "--json").json
    assert [job["id"] for job in first["jobs"]] == ids[:1:-1]
    second = winch(
        "jobs", "list", "--state", "scheduled", "--tag=x", "--after", first["next"], "--json"
    ).json
    assert [job["id"] for job in second["jobs"]] == ids[1::-1]
    assert second["next"] is None
    assert len(winch("jobs", "list", "--state", "scheduled,ready", "--json").json["jobs"]) == 6
    table = winch("jobs", "list", "--limit", "2")
    assert " ".join(table.out.splitlines()[0].split()) == "ID STATE TASK QUEUE ATTEMPT WHEN ARGS"
    assert "--after" in table.err


def test_json_has_full_ids_and_iso_times(winch: Command, app: App) -> None:
    job = app.tasks.get("shop.add").enqueue(1)
    [shown] = winch("jobs", "list", "--json").json["jobs"]
    assert shown["id"] == job.id
    assert shown["args"] == {"a": 1}
    assert datetime.fromisoformat(shown["created_at"]).tzinfo is not None


def test_show_prints_every_part_of_a_job(winch: Command, app: App) -> None:
    [dead] = die(app, "ada")
    app.jobs.retry(dead)
    app.run_worker(burst=True)
    page = winch("jobs", "show", dead).out
    for part in ("created", "attempt 1  failed after", "retried by", "ValueError: mailbox of ada"):
        assert part in page
    assert page.index("created") < page.index("failed after") < page.index("retried by")
    data = winch("jobs", "show", dead, "--json").json
    assert [entry["what"] for entry in data["history"]] == ["failed", "retried", "failed"]
    assert "token" not in data
    assert "token" not in data["history"][0]


def test_why_stats_and_queues_agree(winch: Command, app: App) -> None:
    job = app.tasks.get("shop.add").enqueue(1)
    assert "No worker serves its queue 'default'" in winch("why", job.id).out
    winch("queues", "pause", "default", "--reason", "spring cleaning")
    assert "is paused: spring cleaning" in winch("why", job.id, "--json").json["why"]
    [queue] = winch("queues", "list", "--json").json["queues"]
    assert (queue["name"], queue["is_paused"], queue["counts"]["ready"]) == ("default", True, 1)
    assert winch("stats", "--json").json["jobs"]["ready"] == 1
    assert "spring cleaning" in winch("stats").out
    assert winch("queues", "resume", "default").out == "default  resumed\n"
    [queue] = winch("queues", "list", "--json").json["queues"]
    assert not queue["is_paused"]


# -- acting ------------------------------------------------------------------------------------------


def test_delete_without_a_terminal_needs_yes(winch: Command, app: App) -> None:
    job = app.tasks.get("shop.add").enqueue(1)
    refused = winch("jobs", "delete", job.id)
    assert refused.code == 2
    assert "pass --yes" in refused.err
    assert (
        winch("jobs", "delete", job.id, "--dry-run").out == f"{job.id}  would be deleted (was ready)\n"
    )
    assert job.refresh().state == "ready"
    assert winch("jobs", "delete", job.id, "--yes").code == 0
    assert winch("jobs", "show", job.id).code == 1


@pytest.mark.parametrize("answer, is_gone", [("y\n", True), ("n\n", False)])
def test_delete_asks_at_a_terminal(winch: Command, app: App, answer: str, is_gone: bool) -> None:
    job = app.tasks.get("shop.add").enqueue(1)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "winch", "--url", winch.url, "jobs", "delete", job.id]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.write(ours, answer.encode())
        code = process.wait(timeout=30)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "Delete 1 job for good? [y/N]" in shown
    assert code == (0 if is_gone else 1)
    assert bool(app.jobs.list()) != is_gone


def test_dead_jobs_are_replayed_and_purged(winch: Command, app: App) -> None:
    ids = die(app, "ada", "bob", "cem")
    listed = winch("dead", "list").out
    assert "ValueError: mailbox of ada is full" in listed
    assert winch("dead", "replay", "--all", "--dry-run").out == "3 dead jobs would be replayed\n"
    assert winch("dead", "replay", ids[0]).out == f"{ids[0]}  ready (was dead)\n"
    assert winch("dead", "replay", ids[0]).code == 1
    assert winch("dead", "replay", "--task", "shop.mail", "--json").json == {
        "matched": 2,
        "replayed": 2,
        "dry_run": False,
        "refused": 0,
    }
    app.run_worker(burst=True)
    assert winch("dead", "purge", "--older-than", "1h", "--yes").out == "0 dead jobs deleted\n"
    assert winch("dead", "purge", "--dry-run").out == "3 dead jobs would be deleted\n"
    assert winch("dead", "purge").code == 2
    assert winch("dead", "purge", "--yes").out == "3 dead jobs deleted\n"
    assert winch("dead", "list", "--json").json == {"jobs": [], "next": None}


def test_dead_jobs_are_grouped_and_replayed_with_changes(winch: Command, app: App) -> None:
    ids = die(app, "ada", "ada")
    [group] = winch("dead", "groups", "--json").json["groups"]
    assert (group["count"], group["task"], group["sample_id"]) == (2, "shop.mail", ids[1])
    assert "CANARY" not in group["message"]
    listed = winch("dead", "groups").out
    assert group["fingerprint"] in listed
    assert "ValueError: mailbox of" in listed
    wanted = ("--group", group["fingerprint"])
    assert [job["id"] for job in winch("dead", "list", *wanted, "--json").json["jobs"]] == ids[::-1]
    changed = ("dead", "replay", *wanted, "--args", '{"to": "dan"}', "--attempts", "1")
    assert winch(*changed).code == 2  # no terminal for the question
    done = winch(*changed, "--to-queue", "slow", "--rate", "500/s", "--force", "--yes")
    assert done.out == "2 dead jobs replayed\n"
    record = app.jobs.get(ids[0]).record
    assert (record.args, record.queue, record.max_attempts) == ('{"to":"dan"}', "slow", 1)
    assert "retried by" in winch("jobs", "show", ids[0]).out
    assert "with new args, queue slow, 1 attempt" in winch("jobs", "show", ids[0]).out


def test_dead_jobs_are_purged_by_number_and_size(winch: Command, app: App) -> None:
    die(app, "ada", "bob", "cem")
    assert winch("dead", "purge", "--keep", "2", "--dry-run").out == "1 dead job would be deleted\n"
    assert winch("dead", "purge", "--keep", "2", "--yes").out == "1 dead job deleted\n"
    assert winch("dead", "purge", "--max-bytes", "0", "--yes").out == "2 dead jobs deleted\n"
    assert winch("dead", "groups", "--json").json == {"groups": []}


# -- enqueue -----------------------------------------------------------------------------------------


def test_enqueue_checks_the_arguments_against_the_task(winch: Command, app: App) -> None:
    winch.shop()
    stored = winch("-A", "shop:app", "enqueue", "shop.add", "--args", '{"a": 1}', "--priority", "high")
    assert stored.code == 0
    assert app.jobs.get(stored.out.strip()).record.priority == 10
    for args, reason in (
        ('{"a": "x"}', "argument 'a': expected int, got str"),
        ('{"c": 1}', "no argument 'c'"),
        ('{"a": 1, "a": 2}', "the key 'a' twice"),
        ('{"a": NaN}', "NaN"),
        ("[1]", "must be a JSON object"),
        ("{", "not valid JSON"),
    ):
        refused = winch("enqueue", "-A", "shop:app", "shop.add", "--args", args)
        assert (refused.code, refused.out) == (2, "")
        assert reason in refused.err
    unknown = winch("enqueue", "-A", "shop:app", "shop.ad")
    assert unknown.code == 2
    assert "did you mean 'shop.add'?" in unknown.err
    assert len(app.jobs.list()) == 1


def test_enqueue_without_an_app_asks_the_live_workers(winch: Command, app: App) -> None:
    assert "no worker is live" in winch("enqueue", "shop.add").err
    start_session(app, tasks=("shop.add",))
    start_session(app, tasks=("shop.mail",), queues=("mail",))
    typo = winch("enqueue", "shop.ad")
    assert (typo.code, "did you mean 'shop.add'?" in typo.err) == (2, True)
    assert (
        "pass --queue: the workers that know shop.mail serve mail" in winch("enqueue", "shop.mail").err
    )
    stored = winch("enqueue", "shop.add", "--args", '{"a": 1}', "--delay", "1h", "--tag", "x", "--json")
    record = app.jobs.get(stored.json["id"]).record
    assert (record.state, record.tags, record.args) == ("scheduled", ("x",), '{"a":1}')


def test_enqueue_twice_with_one_id_is_one_job(winch: Command, app: App) -> None:
    winch.shop()
    args = ["enqueue", "shop.add", "--args", '{"a": 1}', "--id", "01890a5d-ac96-774b-bcce-b302099a8057"]
    first, second = winch(*args, WINCH_APP="shop:app"), winch(*args, WINCH_APP="shop:app")
    assert first.out == second.out
    assert "there before" in second.err
    assert len(app.jobs.list()) == 1


def test_enqueue_waits_for_the_result(winch: Command, app: App) -> None:
    winch.shop()
    late = winch(
        "-A", "shop:app", "enqueue", "shop.add", "--args", '{"a": 1}', "--wait", "--timeout=10ms"
    )
    assert late.code == 1
    assert late.err.splitlines()[-1].endswith("is still ready after 10ms")
    command = [sys.executable, "-m", "winch", "worker", "-A", "shop:app", "--url", winch.url]
    with subprocess.Popen(command, cwd=winch.folder, stderr=subprocess.DEVNULL) as worker:
        done = winch("-A", "shop:app", "enqueue", "shop.add", "--args", '{"a": 1, "b": 2}', "--wait")
        failed = winch(
            "-A",
            "shop:app",
            "enqueue",
            "shop.mail",
            "--args",
            '{"to": "x"}',
            "--wait",
            "--queue=default",
        )
        worker.terminate()
        assert worker.wait(timeout=30) == 0
    assert (done.code, done.out) == (0, "3\n")
    assert (failed.code, "is dead: ValueError: mailbox of x is full" in failed.err) == (1, True)


# -- secrets and escapes -----------------------------------------------------------------------------


def test_secrets_are_masked_unless_revealed(winch: Command, app: App) -> None:
    login = app.tasks.get("shop.login").enqueue(
        "ada", "CANARY-ARG", nested={"cookie": "CANARY-DEEP", "url": "redis://u:CANARY-URL@h"}
    )
    [dead] = die(app, "bob")
    for command in (
        ["jobs", "list"],
        ["jobs", "show", login.id],
        ["jobs", "show", dead],
        ["dead", "list"],
        ["why", dead],
    ):
        for more in ([], ["--json"]):
            answer = winch(*command, *more)
            assert answer.code == 0
            assert "CANARY" not in answer.out + answer.err
    revealed = winch("jobs", "show", login.id, "--reveal", "--json").json
    assert revealed["args"]["password"] == "CANARY-ARG"
    assert revealed["result"]["session_token"] == "CANARY-RESULT"


def test_passwords_in_urls_are_masked_everywhere(winch: Command) -> None:
    url = "postgresql://shop:CANARY@127.0.0.1:1/shop"
    for command in (["config"], ["config", "--json"], ["jobs", "list"], ["health"], ["doctor"]):
        answer = winch(*command, url=url)
        assert "CANARY" not in answer.out + answer.err


def test_stored_text_cannot_steer_the_terminal(winch: Command, app: App) -> None:
    evil = "\x1b]0;owned\x07\nwinch: all is well\u202e"
    job = app.tasks.get("shop.mail").enqueue(evil)
    app.run_worker(burst=True)
    app.queues.pause("default", reason=evil)
    for command in (["jobs", "list"], ["jobs", "show", job.id], ["dead", "list"], ["queues", "list"],
                    ["why", job.id], ["stats"], ["doctor"]):  # fmt: skip
        for more in ([], ["--json"])[: 1 if command[0] == "why" else 2]:
            out = winch(*command, *more).out
            assert all(char.isprintable() or char == "\n" for char in out), command
            assert "\nwinch: all is well" not in out


def test_colours_are_for_terminals_only(winch: Command, app: App) -> None:
    app.tasks.get("shop.add").enqueue(1)
    assert "\x1b" not in winch("jobs", "list").out
    command = [sys.executable, "-m", "winch", "--url", winch.url, "jobs", "list"]
    for env, has_colour in (({}, True), ({"NO_COLOR": "1"}, False)):
        ours, theirs = pty.openpty()
        done = subprocess.run(command, stdout=theirs, env=os.environ | env, check=True)
        os.close(theirs)
        shown = os.read(ours, 10_000).decode()
        os.close(ours)
        assert done.returncode == 0
        assert ("\x1b[34mready" in shown) == has_colour
        assert "ready" in shown


# -- settings and doctor -----------------------------------------------------------------------------


def test_config_shows_where_each_value_came_from(winch: Command) -> None:
    (winch.folder / "winch.toml").write_text('lease = "1m"\n')
    shown = winch("config", "--origin", "--json", WINCH_GRACE="5s").json
    assert shown["lease"] == {"value": "1m", "origin": "winch.toml"}
    assert shown["grace"] == {"value": "5s", "origin": "$WINCH_GRACE"}
    assert shown["poll"]["origin"] == "default"
    assert winch("--url", "memory://", "config", "--origin").out.splitlines()[1].split() == [
        "url",
        "memory://",
        "command",
        "line",
    ]


def test_an_app_named_in_a_file_decides_the_store(winch: Command, app: App) -> None:
    app.tasks.get("shop.add").enqueue(1)
    (winch.folder / "shop.py").write_text(f"import winch\napp = winch.App({winch.url!r})\n")
    (winch.folder / "pyproject.toml").write_text('[tool.winch]\napp = "shop:app"\n')
    assert len(winch("jobs", "list", "--json", url=None).json["jobs"]) == 1
    (winch.folder / "shop.py").write_text("1 / 0\n")
    broken = winch("jobs", "list", url=None)
    assert (broken.code, "ZeroDivisionError" in broken.err, "--url" in broken.err) == (2, True, True)
    assert len(winch("jobs", "list", "--json", "--url", winch.url).json["jobs"]) == 1


def test_doctor_names_jobs_that_no_live_worker_can_run(winch: Command, app: App) -> None:
    assert winch("doctor").code == 0
    app.tasks.get("shop.add").enqueue(1)
    start_session(app, tasks=("shop.mail",))
    app.tasks.get("shop.mail").using(queue="mail").enqueue("ada")
    answer = winch("doctor", "--json")
    assert answer.code == 1
    problems = [f["text"] for f in answer.json["findings"] if f["level"] == "problem"]
    assert problems == [
        "1 job of queue 'mail' is ready, and no live worker serves it",
        "no live worker has the task 'shop.add'; 1 ready job wait for it",
    ]
    assert "2 problems" in winch("doctor").out


def test_doctor_warns_of_mixed_releases_and_leases_that_are_over(winch: Command, app: App) -> None:
    start_session(app, tasks=("shop.add",), release="0.1.0")
    start_session(app, tasks=("shop.add",), release="0.2.0")
    start_session(app, tasks=("shop.add",), lease=timedelta(milliseconds=1))
    answer = winch("doctor", "--json")
    assert answer.code == 0
    warnings = [f["text"] for f in answer.json["findings"] if f["level"] == "warning"]
    assert any("the lease of box-1 is over since" in text for text in warnings)
    assert "live workers run different releases: 1 × 0.1.0, 1 × 0.2.0" in warnings
    assert all(f["advice"] for f in answer.json["findings"] if f["level"] != "ok")


def test_doctor_names_the_risks_of_the_sqlite_file(winch: Command, app: App) -> None:
    (winch.folder / "winch.db").chmod(0o644)
    findings = winch("doctor", "--json", url=winch.url + "?sync=normal").json["findings"]
    levels = {finding["subject"]: finding["level"] for finding in findings}
    assert levels["durability"] == levels["permissions"] == "warning"
    assert levels["sqlite"] in ("ok", "note")


def test_doctor_fails_for_a_file_that_another_program_uses(winch: Command, app: App) -> None:
    with contextlib.closing(sqlite3.connect(winch.folder / "winch.db")) as conn:
        conn.execute("CREATE TABLE orders (id INTEGER)")
    if not has_wal_reset_bug(sqlite3.sqlite_version_info):
        assert winch("doctor").code == 0
        return
    for url in (winch.url, winch.url + "?shared=1"):
        answer = winch("doctor", "--json", url=url)
        problems = [one for one in answer.json["findings"] if one["level"] == "problem"]
        assert (answer.code, [one["subject"] for one in problems]) == (1, ["shared file"])
        assert "orders" in problems[0]["text"]


def test_doctor_on_a_store_without_schema_suggests_migrate(winch: Command) -> None:
    answer = winch("doctor")
    assert (answer.code, "run `winch migrate`" in answer.out) == (4, True)


# -- purging a queue ---------------------------------------------------------------------------------


def test_a_queue_is_purged_after_a_question(winch: Command, app: App) -> None:
    add = app.tasks.get("shop.add")
    app.enqueue_many([add.using(delay="1h").bind(n) for n in range(3)])
    other = add.using(queue="other").enqueue(9)
    assert winch("queues", "purge", "default", "--dry-run").out == "3 jobs would be removed\n"
    unasked = winch("queues", "purge", "default")
    assert unasked.code == 2
    assert "remove 3 waiting jobs of queue default for good?" in unasked.err
    assert len(app.jobs.list(queue="default")) == 3
    counts = {"matched": 3, "deleted": 3, "cancelled": 0, "dry_run": False}
    done = winch("queues", "purge", "default", "--yes", "--json").json
    assert done == {"name": "default", **counts}
    assert winch("queues", "purge", "default", "--yes").out == "0 jobs deleted\n"
    assert [job.id for job in app.jobs.list()] == [other.id]
    [line] = winch("audit", "--json").json["lines"]
    assert (line["action"], line["target"], line["via"]) == ("purge queue", "default", "cli")


# -- the audit ---------------------------------------------------------------------------------------


def test_the_audit_lists_actor_and_action_for_every_filter(winch: Command, app: App) -> None:
    job = app.tasks.get("shop.add").using(delay="1h").enqueue(1)
    with app.audit.actor("ada"):
        app.jobs.cancel(job.id, reason="not wanted")
    assert winch("queues", "pause", "mail", "--reason", "deploy", "--create").code == 0
    paused, cancelled = winch("audit", "--json").json["lines"]
    assert (cancelled["who"], cancelled["via"], cancelled["action"]) == ("ada", "library", "cancel")
    assert (cancelled["target"], cancelled["detail"]["reason"]) == (job.id, "not wanted")
    assert (paused["via"], paused["action"], paused["target"]) == ("cli", "pause queue", "mail")
    assert datetime.fromisoformat(paused["at"]).tzinfo is not None

    table = winch("audit").out.splitlines()
    assert table[0].split() == ["WHEN", "ACTOR", "ACTION", "TARGET", "VIA", "ORIGIN", "DETAIL"]
    assert len(table) == 3
    assert "reason=not wanted" in table[2]
    for words, found in (
        (["--actor", "ada"], 1),
        (["--action", "pause queue"], 1),
        (["--since", "1h"], 2),
        (["--since", "2020-01-01"], 2),
        (["--since", "2099-01-01T00:00Z"], 0),
        (["--limit", "1"], 1),
        (["--actor", "ada", "--action", "pause queue"], 0),
    ):
        assert len(winch("audit", *words, "--json").json["lines"]) == found, words
    assert winch("audit", "--actor", "unknown").err == "no lines\n"
    wrong = winch("audit", "--since", "2020-13-01")
    assert wrong.code == 2
    assert "ISO 8601" in wrong.err
