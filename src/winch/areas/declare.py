"""`app.declare`: a task that another process or another language runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from winch.core.errors import ConfigError
from winch.engine.tasks.options import TaskOptions, task_options

if TYPE_CHECKING:
    from winch.engine.client.client import Client
    from winch.engine.tasks.runtime import Runtime
    from winch.engine.tasks.task import Task


class Declares:
    """What `App` declares tasks without code with."""

    client: Client
    runtime: Runtime

    def declare(self, name: str, schema: Mapping[str, Any], **options: Any) -> Task[..., Any]:
        """Declare a task without code, which a worker in another process or language runs:

            resize = app.declare("node.resize", {"properties": {"width": {"type": "integer"}}})
            resize.enqueue(width=100)

        `schema` is the JSON Schema of its arguments: an object whose properties are the arguments. A
        call that does not fit it raises InvalidPayload with the reason. `options` are those of
        `@app.task`, such as `queue` and `retry`. Workers of this app do not claim its jobs.
        """
        from winch.engine.tasks.declared import DeclaredTask, check_contract, stub_of

        for option in ("collect", "collect_wait", "isolate", "heartbeat"):
            if option in options:
                raise ConfigError(f"app.declare takes no {option}=: that is for the worker's own code")
        checked = task_options(options, TaskOptions.__struct_fields__)
        contract = check_contract(name, schema)
        task = DeclaredTask(self.client, name, stub_of(name, contract), checked)
        task.take_schema(contract)
        self.runtime.tasks.add(task)
        return task
