"""`winch signal`, `winch flows`, and the steps in `winch jobs show`."""

from __future__ import annotations

from tests.cli.command import Command
from winch import App, Context, Discard, Message, chain


def test_signals_are_sent_once_by_id(winch: Command, app: App) -> None:
    first = winch("signal", "approval:7", "--payload", '{"ok": true}', "--id", "click")
    assert (first.code, first.out.strip()) == (0, "sent")
    again = winch("signal", "approval:7", "--payload", '{"ok": true}', "--id", "click")
    assert again.out.strip() == "known already; nothing changed"
    assert winch("signal", "x", "--json").json == {"name": "x", "new": True}
    assert winch("signal", "x", "--payload", "{").code == 2


def test_steps_are_shown_with_their_results(winch: Command, app: App) -> None:
    @app.task(name="flow.saga")
    def saga(*, ctx: Context) -> None:
        ctx.step(len, "abc", name="count")
        ctx.step(dict, [("password", "CANARY")], name="secret")
        ctx.wait_for("go")

    job = saga.enqueue()  # type: ignore[call-arg]
    app.run_worker(burst=True)
    page = winch("jobs", "show", job.id).out
    assert "Steps" in page
    assert "count" in page
    assert "done  3" in page
    assert "signal go" in page
    assert "CANARY" not in page
    shown = winch("jobs", "show", job.id, "--json").json
    assert [(step["name"], step["state"]) for step in shown["steps"]] == [
        ("count", "done"),
        ("secret", "done"),
        ("signal go", "waits"),
    ]
    assert "it waits for the signal 'go'" in winch("why", job.id).out


def test_flows_are_listed_shown_drawn_cancelled_and_retried(winch: Command, app: App) -> None:
    add = app.tasks.get("shop.add")
    made = chain(add.bind(1), add.partial(b=2), name="sum").enqueue()
    assert winch("flows", "list", "--json").json["flows"] == [
        {"id": made.id, "name": "sum", "kind": "chain"}
    ]
    assert made.id in winch("flows", "list").out
    page = winch("flows", "show", made.id).out
    assert "1: shop.add  after 0" in page
    assert winch("flows", "graph", made.id).out.startswith("flowchart TD")
    assert winch("flows", "graph", made.id, "--format", "svg").out.startswith("<svg")
    assert winch("flows", "cancel", made.id, "--json").json == {"jobs": 2}
    assert winch("flows", "show", made.id, "--json").json["state"] == "cancelled"
    assert winch("flows", "retry", made.id).out.startswith("2 jobs")
    while not made.last[0].refresh().state.is_final:
        app.run_worker(burst=True)  # a burst may end before the second job becomes ready
    assert made.result() == 3
    assert winch("flows", "show", "019b76da-a800-7000-89e7-a54d87bdc1f7").code == 1


def test_messages_of_the_outbox_are_listed_replayed_and_purged(winch: Command, app: App) -> None:
    is_up = False

    def deliver(message: Message) -> None:
        if not is_up:
            raise Discard("no such place")

    app.outbox.sink("orders", deliver)
    app.outbox.add("orders", key="42", payload={"n": 1})
    second = app.outbox.add("orders", key="42", payload={"n": 2})
    app.run_worker(burst=True)
    assert "outbox:orders" in winch("outbox", "list", "--state", "dead").out
    is_up = True
    done = winch("outbox", "replay", "--topic", "orders", "--json").json
    assert done == {"matched": 1, "replayed": 1, "dry_run": False, "refused": 0}
    while not second.refresh().state.is_final:
        app.run_worker(burst=True)
    gone = winch("outbox", "purge", "--topic", "orders", "--older-than", "0s", "--yes")
    assert gone.out.strip() == "0 dead messages deleted"
