"""`winch worker`: a supervisor and its children."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from winch.areas.launch.supervised import supervise
from winch.cli.shared.load import load_app
from winch.cli.shared.text import lines, one_line
from winch.core.values.redact import mask_text
from winch.engine.base.settings import load
from winch.engine.supervisor.worker_options import WorkerFlag, settings_of, worker_flags

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"
SHORT_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
# The environment variable of the style; children and isolated children inherit it.
LOG_STYLE = "WINCH_LOG_STYLE"


def app_options(command: Any) -> Any:
    """Where the app and its settings come from."""
    for option in reversed(
        [
            click.option("-A", "--app", "app_spec", metavar="MODULE:APP", help="The application."),
            click.option("--url", help="The store; overrides every other setting of it."),
            click.option("--schema", help="PostgreSQL schema of this app's tables."),
            click.option("--config", type=click.Path(), help="A configuration file."),
        ]
    ):
        command = option(command)
    return command


def worker_options(command: Any, *, is_child: bool = False) -> Any:
    """The options of a worker, as engine/supervisor/worker_options.py describes them."""
    known = worker_flags()
    shared = [_option(name, flag) for name, flag in known.items() if flag.is_childs]
    shared.append(click.option("-v", "--verbose", count=True, help="More log lines."))
    own = [_option(name, flag) for name, flag in known.items() if not (flag.is_childs or is_child)]
    for option in reversed(shared + own):
        command = option(command)
    return app_options(command)


def _option(name: str, flag: WorkerFlag) -> Any:
    if flag.kind is bool:
        return click.option(*flag.names, name, is_flag=True, help=flag.help)
    given: dict[str, Any] = {"help": flag.help}
    if flag.kind is int:
        given["type"] = int if flag.most is None else click.IntRange(0, flag.most)
    if flag.is_repeated:
        given |= {"multiple": True, "metavar": "NAME=VALUE"}
    if flag.default is not None:
        given |= {"default": flag.default, "show_default": True}
    return click.option(*flag.names, name, **given)


@click.command()
@worker_options
def worker(
    app_spec: str | None,
    url: str | None,
    schema: str | None,
    config: str | None,
    verbose: int,
    **given: Any,
) -> None:
    """Run jobs until stopped.

    On SIGTERM or Ctrl-C it claims no new jobs, gives running jobs --grace, and returns the rest with no
    attempt spent. A second signal stops it at once. SIGUSR1 or SIGTSTP stops claiming, SIGCONT starts it
    again, SIGUSR2 writes stacks to the log.
    """
    start_logging(verbose)
    run_worker({"app": app_spec, "url": url, "schema": schema}, given, config=config, verbose=verbose)


def run_worker(
    source: Mapping[str, str | None],
    given: Mapping[str, Any],
    *,
    config: str | None,
    verbose: int,
) -> None:
    """Run a supervisor with these options to its end, and exit with its code. `source`: the app, and
    the settings of its store."""
    # The supervisor imports no user code: only its children know the settings in the app's code.
    loaded = load(cli={**source, **settings_of(given)}, config=config)
    spec = loaded.settings.app
    if spec is None:
        load_app(None, config)
    sys.exit(supervise(loaded, given, source={**source, "app": spec, "config": config}, verbose=verbose))


class SafeFormatter(logging.Formatter):
    """One record per line, without the secrets and escapes that a job's error text may hold. Times have
    their offset, so that logs of several machines can be read together."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  # logging's name
        if datefmt is not None:
            return super().formatTime(record, datefmt)
        return (
            datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(timespec="milliseconds")
        )

    def format(self, record: logging.LogRecord) -> str:
        record = logging.makeLogRecord(record.__dict__)
        record.msg, record.args = one_line(mask_text(record.getMessage())), None
        if record.exc_text:
            record.exc_text = "\n".join(lines(mask_text(record.exc_text)))
        return super().format(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's name
        return "\n".join(lines(mask_text(super().formatException(ei))))


class JsonFormatter(SafeFormatter):
    """One JSON object per line, for programs that read logs; with the trace a line belongs to, where
    the application has OpenTelemetry."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": mask_text(record.getMessage()),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        elif record.exc_text:
            fields["error"] = mask_text(record.exc_text)
        trace = sys.modules.get("opentelemetry.trace")
        if trace is not None:
            here = trace.get_current_span().get_span_context()
            if here.is_valid:
                fields |= {
                    "trace_id": format(here.trace_id, "032x"),
                    "span_id": format(here.span_id, "016x"),
                }
        return msgspec.json.encode(fields).decode()


def formatter() -> logging.Formatter:
    """By $WINCH_LOG_STYLE: short for a terminal, json for programs."""
    match os.environ.get(LOG_STYLE):
        case "short":
            return SafeFormatter(SHORT_FORMAT, "%H:%M:%S")
        case "json":
            return JsonFormatter()
        case _:
            return SafeFormatter(LOG_FORMAT)


class ShownOnce(logging.Filter):
    """Leaves out a record that a handler of the application has written to the terminal already.

    Django's default configuration has such a handler and passes its records on to the root logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None and logger.parent is not None:
            if any(_writes(handler, record) for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True


def _writes(handler: logging.Handler, record: logging.LogRecord) -> bool:
    return (
        isinstance(handler, logging.StreamHandler)
        and handler.stream in (sys.stderr, sys.stdout)
        and record.levelno >= handler.level
        and bool(handler.filter(record))
    )


def start_logging(verbose: int) -> None:
    """Logs go to stderr; data to stdout."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter())
    handler.addFilter(ShownOnce())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    logging.getLogger("winch").setLevel(logging.DEBUG if verbose else logging.INFO)
