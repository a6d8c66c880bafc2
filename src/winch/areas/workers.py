"""`app.workers`: the workers that the store knows, and commands to them."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

from winch.core.errors import ConfigError
from winch.core.policy.queue_limits import pairs_text
from winch.core.values.duration import Duration, parse_duration
from winch.engine.base.operation import Operation
from winch.engine.client.audit import actor, noted
from winch.engine.client.client import Client
from winch.engine.client.twins import blocking, twin
from winch.engine.client.worker_commands import (
    Action,
    WorkerAnswer,
    WorkerCommand,
    await_answers,
    by_worker,
    live_sessions,
    named,
    send,
)
from winch.engine.client.worker_commands import idlest as fewest_jobs
from winch.engine.supervisor.worker_options import changed_options, queues_text
from winch.storage.params import SessionInfo

# The words of the audit.
_AUDIT: dict[Action, str] = {
    "quiet": "quiet worker",
    "resume": "resume worker",
    "stop": "stop worker",
    "drain": "drain worker",
    "stacks": "worker stacks",
    "configure": "configure worker",
}


class Workers:
    """`app.workers`: the sessions of workers that the store knows, and commands to them.

    A command goes through the store, so it reaches a worker on any machine with its next heartbeat, five
    seconds later at most. `names` are names of workers or ids of sessions. A method waits up to `wait`
    for the answers; a command that is not answered by then stays in force for ten minutes.

    A command acts on the whole `winch worker` that a process belongs to. `stacks` reads the one process.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @blocking
    def list(self, *, is_ended_too: bool = False) -> Operation[builtins.list[SessionInfo]]:
        """The sessions of workers, latest start first. Ended ones are included on request."""
        driver = self._client.driver()
        found: builtins.list[SessionInfo] = yield driver.sessions(is_ended_too=is_ended_too)
        return [session for session in found if session.is_worker]

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

    @blocking
    def quiet(self, *names: str, wait: Duration = "15s") -> Operation[builtins.list[WorkerAnswer]]:
        """Have these workers claim nothing more; running jobs continue."""
        return (yield from self._command(names, "quiet", wait))

    @twin(quiet)
    def aquiet(self) -> None:
        """`quiet` without blocking the event loop."""

    @blocking
    def resume(self, *names: str, wait: Duration = "15s") -> Operation[builtins.list[WorkerAnswer]]:
        """Have quiet workers claim again."""
        return (yield from self._command(names, "resume", wait))

    @twin(resume)
    def aresume(self) -> None:
        """`resume` without blocking the event loop."""

    @blocking
    def stop(
        self, *names: str, grace: Duration | None = None, wait: Duration = "15s"
    ) -> Operation[builtins.list[WorkerAnswer]]:
        """Stop these workers. Running jobs get their grace period; then they go back to the queue.

        `grace` replaces the grace period of the worker. The answer comes when the stop begins.
        """
        seconds = None if grace is None else parse_duration(grace, "grace").total_seconds()
        return (yield from self._command(names, "stop", wait, grace=seconds))

    @twin(stop)
    def astop(self) -> None:
        """`stop` without blocking the event loop."""

    @blocking
    def drain(
        self, *names: str, idlest: int | None = None, wait: Duration = "15s"
    ) -> Operation[builtins.list[WorkerAnswer]]:
        """Have these workers claim nothing more, and end when their last jobs have ended.

        Unlike `stop`, it interrupts no job. The answer comes when the drain begins. With `idlest` and
        no names it takes so many workers that run the fewest jobs.
        """
        if idlest is not None:
            if names or idlest < 1:
                raise ConfigError(f"give names, or idlest=1 or more, got {names} and {idlest}")
            live = yield from live_sessions(self._client.driver())
            names = tuple(session.id for session in fewest_jobs(live, idlest))
            if not names:
                return []
        return (yield from self._command(names, "drain", wait))

    @twin(drain)
    def adrain(self) -> None:
        """`drain` without blocking the event loop."""

    @blocking
    def stacks(self, *names: str, wait: Duration = "15s") -> Operation[builtins.list[WorkerAnswer]]:
        """The stacks and running jobs of these processes, as the text of each answer."""
        return (yield from self._command(names, "stacks", wait))

    @twin(stacks)
    def astacks(self) -> None:
        """`stacks` without blocking the event loop."""

    @blocking
    def configure(
        self,
        *names: str,
        concurrency: int | None = None,
        queues: str | Sequence[str] | Mapping[str, int] | None = None,
        queue_limits: str | Mapping[str, int] | None = None,
        queue_rates: str | Mapping[str, str] | None = None,
        wait: Duration = "15s",
    ) -> Operation[builtins.list[WorkerAnswer]]:
        """Change the concurrency of each process, the queues, or their bounds, while the workers run.

        New processes with these settings start, and running jobs end in the old ones. `queues` is a
        list, a mapping of weights, or the text of `-Q`. `queue_limits` and `queue_rates` replace those
        of all queues; an empty mapping removes them. A worker that is started anew has the settings of
        its command line again.
        """
        text = None if queues is None else queues_text(queues)
        changed_options(  # refused here, not only by the worker
            concurrency=concurrency, queues=text, queue_limits=queue_limits, queue_rates=queue_rates
        )
        settings = {
            "concurrency": concurrency,
            "queues": text,
            "queue_limits": queue_limits if queue_limits is None else _text(queue_limits),
            "queue_rates": queue_rates if queue_rates is None else _text(queue_rates),
        }
        return (yield from self._command(names, "configure", wait, **settings))

    @twin(configure)
    def aconfigure(self) -> None:
        """`configure` without blocking the event loop."""

    def _command(
        self,
        names: Sequence[str],
        action: Action,
        wait: Duration,
        **settings: Any,
    ) -> Operation[builtins.list[WorkerAnswer]]:
        if not names:
            raise ConfigError(f"name the workers to {action}: app.workers.list() has their names")
        seconds = parse_duration(wait, "wait").total_seconds()
        driver = self._client.driver()
        sessions = named((yield from live_sessions(driver)), names)
        command = WorkerCommand(do=action, by=actor(), **settings)
        # All but `stacks` act on a whole worker: one of its processes gets the command.
        workers = [[one] for one in sessions] if action == "stacks" else by_worker(sessions)
        sent = {}
        for worker in workers:
            sent[(yield from send(driver, worker[0].id, command))] = worker
        target = ", ".join(session.worker for session in sessions)
        yield from noted(driver, _AUDIT[action], target, **settings)
        return (yield from await_answers(driver, sent, seconds))


def _text(pairs: str | Mapping[str, object]) -> str:
    return pairs if isinstance(pairs, str) else pairs_text(pairs)
