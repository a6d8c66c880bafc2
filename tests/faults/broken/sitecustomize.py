"""Takes the fence out of `finish`: put this folder on PYTHONPATH of a worker to break it.

Python imports a module of this name by itself at start-up. One line of each driver is changed: the token
is no longer compared, and the state alone decides, as in several queues that people use.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from types import ModuleType


def break_sqlite() -> None:
    from winch.drivers.sqlite import working

    source = inspect.getsource(working)
    fence = "row = held.pop((outcome.id, outcome.token), None)"
    open_gate = "row = next((held.pop(key) for key in list(held) if key[0] == outcome.id), None)"
    assert source.count(fence) == 1, "the fence of SQLite's finish has moved"
    broken = ModuleType(working.__name__)
    exec(compile(source.replace(fence, open_gate), "<broken>", "exec"), broken.__dict__)  # noqa: S102
    working.WorkingVerbs.finish = broken.WorkingVerbs.finish  # type: ignore[method-assign]


def break_postgres() -> None:
    steps = importlib.import_module("winch.drivers.postgres.steps")
    fence = "AND job.token = outcome.by_token"
    statement = steps.STATEMENTS["finish"]
    assert statement.text.count(fence) == 1, "the fence of PostgreSQL's finish has moved"
    text = statement.text.replace(fence, "")
    steps.STATEMENTS["finish"] = dataclasses.replace(statement, text=text)


break_sqlite()
break_postgres()
