"""An unknown name is taken for a typing error, unless an option allows it."""

from __future__ import annotations

import pytest

from tests.cli.command import Command
from winch import App


@pytest.mark.parametrize(
    "args, hint",
    [
        (["queues", "pause", "defalt"], "no queue is named 'defalt' (did you mean 'default'?)"),
        (["limits", "set", "limit:shop.ad", "5"], "no limit is named 'limit:shop.ad'"),
        (["limits", "set", "rate:shop.add", "5/m"], "no limit is named 'rate:shop.add'"),
    ],
)
def test_an_unknown_name_is_refused(winch: Command, app: App, args: list[str], hint: str) -> None:
    answer = winch(*args)
    assert (answer.code, answer.out) == (2, "")
    assert hint in answer.err
    assert "--create" in answer.err
    assert app.queues.list() == []
    assert app.limits.list() == []
    assert winch(*args, "--create").code == 0
    assert winch(*args).code == 0, "it is known now"


def test_one_unknown_queue_among_others_pauses_none(winch: Command, app: App) -> None:
    app.tasks.get("shop.add").enqueue(1)
    assert winch("queues", "pause", "default", "nope").code == 2
    assert all(queue.paused_at is None for queue in app.queues.list())


def test_a_queue_with_jobs_or_settings_is_known(winch: Command, app: App) -> None:
    app.tasks.get("shop.add").using(queue="odd").enqueue(1)
    assert winch("queues", "pause", "odd").code == 0


@pytest.mark.parametrize("option", ["--yes", "--dry-run"])
def test_an_unknown_queue_is_not_purged(winch: Command, app: App, option: str) -> None:
    answer = winch("queues", "purge", "defalt", option)
    assert (answer.code, answer.out) == (2, "")
    assert "no queue is named 'defalt' (did you mean 'default'?)" in answer.err
    assert "--create" not in answer.err, "purge has no such option"
    assert app.queues.list() == []


def test_any_tenant_may_have_a_weight(winch: Command, app: App) -> None:
    assert winch("limits", "set", "tenant:acme", "3").code == 0
