"""The options of a worker, described once. `winch worker`, `app.run_worker(…)` and `manage.py winch
worker` take them from here."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict, get_type_hints

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.core.policy.queue_limits import pairs_text, parse_limits, parse_rates
from winch.core.values.duration import Duration
from winch.engine.base.settings import Settings
from winch.engine.tasks.options import MOST_SLOTS
from winch.engine.worker.queues.order import parse_queues

LAST_PORT = 65535
MOST_AT_ONCE = MOST_SLOTS


class WorkerFlag(msgspec.Struct, frozen=True):
    """An option on the command line: its names, its help and what it takes."""

    names: tuple[str, ...]
    help: str
    kind: type[str] | type[int] | type[bool] = str
    default: str | None = None
    is_repeated: bool = False
    """It may be given several times, each as name=value."""
    most: int | None = None
    """A number from 0 to this."""
    is_childs: bool = True
    """A child process gets it, too. Else it is of the supervisor alone."""
    needs_supervisor: bool = False
    """`app.run_worker` starts processes for it. Else the worker can run in the caller's process."""


class WorkerOptions(TypedDict, total=False):
    """The options of a worker. Code may give lists, durations and numbers in place of text."""

    queues: Annotated[
        Sequence[str] | Mapping[str, int],
        WorkerFlag(
            ("-Q", "--queues"),
            "Queues in strict order (a,b), by weight (a:5,b:1), or all but some ('*,-slow').",
            default="default",
        ),
    ]
    concurrency: Annotated[
        int | None,
        WorkerFlag(("-c", "--concurrency"), "Jobs that each process runs at the same time.", int),
    ]
    processes: Annotated[
        int | None, WorkerFlag(("-p", "--processes"), "Worker processes.", int, needs_supervisor=True)
    ]
    labels: Annotated[
        Mapping[str, str] | Sequence[str] | None,
        WorkerFlag(
            ("--label",),
            "What this worker offers to tasks with needs, like gpu=h100; may be repeated.",
            is_repeated=True,
        ),
    ]
    queue_limits: Annotated[
        Mapping[str, int] | str | None,
        WorkerFlag(
            ("--queue-limits",), "Jobs of a queue that each process runs at the same time, like mail=2."
        ),
    ]
    queue_rates: Annotated[
        Mapping[str, str] | str | None,
        WorkerFlag(
            ("--queue-rates",), "Jobs of a queue that each process claims in a time, like mail=10/s."
        ),
    ]
    burst: Annotated[bool, WorkerFlag(("--burst",), "Exit when no job is ready.", bool)]
    grace: Annotated[
        Duration | None,
        WorkerFlag(("--grace",), "How long running jobs may continue after a stop, like 30s."),
    ]
    max_jobs: Annotated[
        int | None,
        WorkerFlag(
            ("--max-jobs",), "Replace a process after this many jobs.", int, needs_supervisor=True
        ),
    ]
    max_memory: Annotated[
        int | str | None,
        WorkerFlag(
            ("--max-memory",),
            "Replace a process that uses more memory, like 512MB.",
            needs_supervisor=True,
        ),
    ]
    max_lifetime: Annotated[
        Duration | None,
        WorkerFlag(
            ("--max-lifetime",),
            "Replace a process after this time, like 1h (±10 %).",
            needs_supervisor=True,
        ),
    ]
    no_replace: Annotated[
        bool,
        WorkerFlag(
            ("--no-replace",),
            "Exit where a process would be replaced: with --max-jobs, after this many jobs.",
            bool,
            is_childs=False,
            needs_supervisor=True,
        ),
    ]
    report_busy: Annotated[
        str | None,
        WorkerFlag(
            ("--report-busy",),
            "Where to report the number of running jobs: kubernetes, a file or a URL.",
            is_childs=False,
            needs_supervisor=True,
        ),
    ]
    reload: Annotated[
        bool,
        WorkerFlag(
            ("--reload",),
            "Replace processes when the app's code changes.",
            bool,
            is_childs=False,
            needs_supervisor=True,
        ),
    ]
    health_port: Annotated[
        int | None,
        WorkerFlag(
            ("--health-port",),
            "Port of /livez, /readyz and /metrics; 0 picks a free one.",
            int,
            most=LAST_PORT,
            is_childs=False,
            needs_supervisor=True,
        ),
    ]
    health_host: Annotated[
        str,
        WorkerFlag(
            ("--health-host",), "The address of --health-port.", default="127.0.0.1", is_childs=False
        ),
    ]


def worker_flags() -> dict[str, WorkerFlag]:
    """The options by name, in the order of the help."""
    hints = get_type_hints(WorkerOptions, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def check_options(given: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option that a worker does not have."""
    known = worker_flags()
    for name in given:
        if name not in known:
            raise ConfigError(f"run_worker() has no option {name!r}{did_you_mean(name, known)}")


def needs_supervisor(given: Mapping[str, Any]) -> bool:
    """Whether these options need processes under a supervisor."""
    known = worker_flags()
    chosen = [name for name, value in given.items() if value is not None and value is not False]
    return any(known[name].needs_supervisor for name in chosen)


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are settings of the app, too."""
    return {name: value for name, value in given.items() if name in Settings.__struct_fields__}


def changed_options(
    *,
    concurrency: int | None,
    queues: str | None,
    queue_limits: Mapping[str, int] | str | None = None,
    queue_rates: Mapping[str, str] | str | None = None,
) -> list[str]:
    """The flags of a child for settings that change while its worker runs; raises ConfigError."""
    flags: list[str] = []
    if concurrency is not None:
        if not 1 <= concurrency <= MOST_AT_ONCE:
            raise ConfigError(f"concurrency must be from 1 to {MOST_AT_ONCE}, got {concurrency}")
        flags += ["--concurrency", str(concurrency)]
    if queues is not None:
        parse_queues(queues, random.Random())  # noqa: S311  # order, not a secret
        flags += ["--queues", queues]
    if queue_limits is not None:
        flags += ["--queue-limits", pairs_text(parse_limits(queue_limits, "queue_limits"))]
    if queue_rates is not None:
        flags += ["--queue-rates", pairs_text(parse_rates(queue_rates, "queue_rates"))]
    if not flags:
        raise ConfigError("name what to change: concurrency, queues, queue_limits or queue_rates")
    return flags


def queues_text(queues: str | Sequence[str] | Mapping[str, int]) -> str:
    """The queues as the command line has them."""
    if isinstance(queues, str):
        return queues
    if isinstance(queues, Mapping):
        return ",".join(f"{name}:{weight}" for name, weight in queues.items())
    return ",".join(queues)
