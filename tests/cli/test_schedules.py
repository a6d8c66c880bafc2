"""`winch schedules`, and what `winch doctor` reports about them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.cli.command import Command
from winch import App
from winch.storage.decide.schedules import Put, Tick


def test_a_schedule_from_the_command_line(winch: Command) -> None:
    winch.shop()
    added = winch(
        "schedules", "add", "sum", "shop.add", "--cron", "30 2 * * *", "--tz", "America/New_York",
        "--args", '{"a": 1}', "--overlap", "skip", "-A", "shop:app",
    )  # fmt: skip
    assert (added.code, "added" in added.out) == (0, True), added.err
    [shown] = winch("schedules", "list", "--json").json["schedules"]
    assert (shown["name"], shown["task"], shown["overlap"], shown["tz"]) == (
        "sum",
        "shop.add",
        "skip",
        "America/New_York",
    )
    assert "30 2 * * * America/New_York" in winch("schedules", "list").out
    windows = winch("schedules", "next", "sum", "-n", "3", "--json").json["next"]
    assert len(windows) == 3
    assert "E" in winch("schedules", "next", "sum").out, "the own zone is shown, EST or EDT"
    job = winch("schedules", "trigger", "sum").out.strip()
    assert winch("jobs", "show", job, "--json").json["args"] == {"a": 1}
    assert winch("schedules", "skip", "sum", "--json").json["skipped"] == windows[0]
    winch("schedules", "pause", "sum", "--reason", "stocktaking")
    page = winch("schedules", "show", "sum").out
    for part in ("At 02:30", "overlap skip", "dst once", "stocktaking", "triggered", "skipped", job):
        assert part in page
    winch("schedules", "resume", "sum")
    data = winch("schedules", "show", "sum", "--json").json
    assert [run["kind"] for run in data["history"]] == ["skipped", "triggered"]
    assert not data["is_paused"]
    edited = winch("schedules", "edit", "sum", "--cron", "0 3 * * *", "--json").json
    assert (edited["cron"], edited["tz"], edited["overlap"]) == ("0 3 * * *", "America/New_York", "skip")
    assert winch("schedules", "remove", "sum").code == 0
    gone = winch("schedules", "show", "sum")
    assert (gone.code, "no schedule named 'sum'" in gone.err) == (1, True)


def test_mistakes_are_one_line(winch: Command) -> None:
    winch.shop()
    add = ("schedules", "add", "sum", "shop.add", "-A", "shop:app", "--args", '{"a": 1}')
    for more, reason in (
        (("--cron", "30 2 * *"), "five fields"),
        (("--every", "5m", "--tz", "Europe/London"), "go with a cron expression"),
        ((), "takes a cron expression or every"),
    ):
        answer = winch(*add, *more)
        assert (answer.code, reason in answer.err) == (2, True), answer.err
    assert winch("schedules", "add", "sum", "shop.ad", "--cron", "@daily", "-A", "shop:app").code == 2


def test_doctor_names_late_and_paused_schedules(winch: Command, app: App) -> None:
    app.schedules.add("paused", task="shop.add", every="1h", args={"a": 1})
    app.schedules.pause("paused", reason="stocktaking")
    one = app.schedules.add("late", task="shop.add", every="1m", args={"a": 1})
    assert winch("doctor").code == 0
    app.schedules.remove("late")
    driver, ago = app.ready(), datetime.now(UTC) - timedelta(hours=1)
    text = one.definition.text
    put = Put(definition=text, timing=one.timing.key, is_new=True)
    driver.run(driver.change_schedule("late", put, now=ago))
    driver.run(driver.change_schedule("late", Tick(definition=text, since=ago), now=ago))
    answer = winch("doctor", "--json")
    assert answer.code == 1
    texts = {finding["level"]: finding["text"] for finding in answer.json["findings"]}
    assert texts["problem"].startswith("schedule 'late' is late: its window of")
    assert "late by 59m" in winch("schedules", "list").out


def test_settings_of_a_queue_from_the_command_line(winch: Command, app: App) -> None:
    shown = winch("queues", "set", "mail", "max_depth=1", "on_full=reject", "backoff=30s", "--json")
    assert shown.json["settings"] == {"backoff": "PT30S", "max_depth": 1}
    assert "max_depth=1" in winch("queues", "set", "mail").out
    winch.shop()
    assert winch("enqueue", "shop.mail", "--args", '{"to": "ada"}', "-A", "shop:app").code == 0
    full = winch("enqueue", "shop.mail", "--args", '{"to": "ada"}', "-A", "shop:app")
    assert (full.code, "queue 'mail' is full" in full.err) == (1, True)
    assert winch("queues", "set", "mail", "max_depth=", "backoff=").err.startswith("nothing is set")
    assert winch("queues", "set", "mail", "max_depth").code == 2
    winch("queues", "pause", "mail", "--until", "2h")
    assert "until 20" in winch("queues", "list").out


def test_a_backfill_from_the_command_line(winch: Command) -> None:
    winch.shop()
    shop = ("-A", "shop:app")
    added = winch(
        "schedules", "add", "sum", "shop.add", "--cron", "30 2 * * *", "--tz", "Europe/Berlin",
        "--args", '{"a": 1}', "--misfire-deadline", "6h", *shop,
    )  # fmt: skip
    assert added.code == 0, added.err
    assert "misfire deadline 6h" in winch("schedules", "show", "sum").out
    backfill = ("schedules", "backfill", "sum", "--from", "2026-03-28", "--to", "2026-03-31")
    seen = winch(*backfill, "--dry-run")
    # On the night of the 29th 02:30 does not exist.
    assert [line.split("  ")[-1] for line in seen.out.splitlines()] == [
        "2026-03-28 02:30:00 CET", "2026-03-29 03:00:00 CEST", "2026-03-30 02:30:00 CEST",
    ]  # fmt: skip
    assert "3 times: 3 jobs to enqueue, 0 had one" in seen.err
    refused = winch(*backfill)
    assert (refused.code, "enqueue 3 jobs of sum" in refused.err) == (2, True), refused.err
    assert winch("jobs", "list", "--json").json["jobs"] == []
    done = winch(*backfill, "--yes", "--json", "--rate", "1/s", "--priority", "7").json
    assert (done["matched"], done["enqueued"], done["existing"]) == (3, 3, 0)
    [*jobs] = winch("jobs", "list", "--json").json["jobs"]
    assert [job["priority"] for job in jobs] == [7, 7, 7]
    again = winch(*backfill)
    assert (again.code, "0 jobs enqueued, 3 had one" in again.err) == (0, True)
    wrong = winch("schedules", "backfill", "sum", "--from", "soon", "--to", "2026-03-31")
    assert (wrong.code, "--from must be a time in ISO 8601, got 'soon'" in wrong.err) == (2, True)
    [line] = [one for one in winch("audit", "--json").json["lines"] if "backfill" in one["action"]]
    assert (line["target"], line["detail"]["enqueued"], line["via"]) == ("sum", 3, "cli")


def test_a_calendar_from_the_command_line(winch: Command, app: App) -> None:
    winch.shop()
    path = winch.folder / "shop.py"
    path.write_text(
        path.read_text() + '\napp.schedules.calendar("c", ["2099-01-01"], weekend=["SUN"])\n'
    )
    added = winch("schedules", "add", "sum", "shop.add", "--cron", "0 9 * * *", "--calendar", "c",
                  "--on-holiday", "next", "--args", '{"a": 1}', "-A", "shop:app")  # fmt: skip
    assert added.code == 0, added.err
    shown = winch("schedules", "show", "sum").out
    assert "c: 1 closed day, SUN; the next open day instead" in shown
    windows = winch("schedules", "next", "sum", "-n", "20", "--json").json["next"]
    assert not any(datetime.fromisoformat(one).weekday() == 6 for one in windows)
    unknown = winch("schedules", "edit", "sum", "--calendar", "d", "-A", "shop:app")
    assert (unknown.code, "no calendar named 'd'" in unknown.err) == (2, True)
    assert winch("schedules", "edit", "sum", "--calendar", "").code == 0
    assert winch("schedules", "show", "sum", "--json").json["calendar"] is None
