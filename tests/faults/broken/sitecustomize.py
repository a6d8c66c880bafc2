"""Takes the fence out of `finish`: put this folder on PYTHONPATH of a worker to break it.

Python imports a module of this name by itself at start-up. One line of each driver is changed: the token
is no longer compared, and the state alone decides, as in several queues that people use.
"""

from __future__ import annotations

import dataclasses
import importlib


def break_sqlite() -> None:
    steps = importlib.import_module("winch.drivers.sqlite.statements")
    for name, fence in (
        ("finish.archive", "AND winch_job.token = :token"),
        ("finish.leave", "AND token = :token"),
    ):
        statement = steps.SQL[name]
        assert statement.text.count(fence) == 1, "the fence of SQLite's finish has moved"
        steps.SQL[name] = dataclasses.replace(statement, text=statement.text.replace(fence, ""))


def break_postgres() -> None:
    steps = importlib.import_module("winch.drivers.postgres.statements")
    fence = "AND job.token = outcome.by_token"
    statement = steps.STATEMENTS["finish"]
    assert statement.text.count(fence) == 1, "the fence of PostgreSQL's finish has moved"
    text = statement.text.replace(fence, "")
    again = "WHEN (id, token) IN ("  # the pairs are looked at once more when it deletes
    assert text.count(again) == 1, "the second fence of PostgreSQL's finish has moved"
    text = text.replace(again, "WHEN id IN (")
    text = text.replace("SELECT outcome.job, outcome.by_token", "SELECT outcome.job")
    steps.STATEMENTS["finish"] = dataclasses.replace(statement, text=text)


break_sqlite()
break_postgres()
