"""The `winch` command: one group, its commands imported only when they are called.

Exit codes: 0 ok, 1 failure, 2 usage, import or configuration, 3 the store cannot be used, 4 the schema
needs `winch migrate`, 69 no worker answered, 70 a worker left jobs to their leases at the deadline,
71 a worker lost one of its background loops.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from winch.core.errors import (
    ConfigError,
    EnqueueUncertain,
    InvalidPayload,
    PayloadTooLarge,
    SchemaMismatch,
    StorageError,
    UnknownTask,
    WinchError,
    did_you_mean,
    within,
)
from winch.core.version import __version__

# name -> (module, attribute, the line in `winch --help`). The line is repeated here so that showing the
# list imports none of them; a test compares it with the command's own.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "worker": ("run.worker", "worker", "Run jobs until stopped."),
    "enqueue": ("jobs.enqueue", "enqueue", "Store a job and print its id."),
    "jobs": ("jobs.jobs", "jobs", "Look at jobs and act on them."),
    "why": ("jobs.why", "why", "Explain why a job is in its state."),
    "dead": ("jobs.dead", "dead", "Look at dead jobs, replay or purge them."),
    "queues": ("operate.queues", "queues", "Look at queues, pause, resume and purge them."),
    "limits": ("operate.limits", "limits", "Look at limits and rates, and set them while workers run."),
    "schedules": ("operate.schedules", "schedules", "Look at schedules, add, pause and trigger them."),
    "flows": ("jobs.flows", "flows", "Look at flows, cancel and retry them."),
    "outbox": ("jobs.outbox", "outbox", "Look at messages of the outbox, replay or purge dead ones."),
    "webhooks": (
        "operate.webhooks",
        "webhooks",
        "Look at webhook endpoints, add, disable, rotate and replay.",
    ),
    "signal": ("jobs.signal", "signal", "Send a signal to the job that waits for it, now or later."),
    "workers": ("operate.workers", "workers", "List workers and send them commands."),
    "audit": ("shared.audit", "audit", "Show the audit log, newest first."),
    "stats": ("operate.stats", "stats", "Count the jobs by state and queue."),
    "top": ("operate.top", "top", "Watch queues, running jobs and rates; q quits."),
    "health": ("admin.health", "health", "Check whether the store can be used; for probes."),
    "doctor": ("admin.doctor", "doctor", "Find problems and print what to do about them."),
    "migrate": ("admin.migrate", "migrate", "Bring the store's schema up to date."),
    "move": ("operate.move", "move", "Move jobs to another store while producers and workers run."),
    "config": ("admin.config", "config", "Show the settings in force."),
    "serve": ("run.serve", "serve", "Serve the HTTP API and the dashboard."),
    "token": ("admin.token", "token", "Create, list and revoke access tokens."),
    "bench": ("bench.command", "bench", "Measure Winch on your store and report what limits it."),
    "dev": ("run.dev", "dev", "Run a worker that restarts when the code changes."),
    "demo": ("run.demo", "demo", "A tour on SQLite: real jobs, a real worker, a real kill."),
    "worker-child": ("run.child", "worker_child", ""),
    "isolated-child": ("run.isolated_child", "isolated_child", ""),
}
HIDDEN = frozenset({"worker-child", "isolated-child"})

USAGE, UNREACHABLE, MIGRATE, NO_WORKER = 2, 3, 4, 69
# The first class that fits decides; everything else is a failure: 1.
EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (EnqueueUncertain, UNREACHABLE),
    (SchemaMismatch, MIGRATE),
    (StorageError, UNREACHABLE),
    (ConfigError, USAGE),
    (InvalidPayload, USAGE),
    (PayloadTooLarge, USAGE),
    (UnknownTask, USAGE),
)


class Commands(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if name not in HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        found: click.Command = getattr(importlib.import_module(f"winch.cli.{module}"), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            names = self.list_commands(ctx)
            hint = did_you_mean(args[0], names) or f"; there are {', '.join(names)}"
            raise click.UsageError(f"no such command: {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])


def _version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        click.echo(f"winch {__version__}")
        ctx.exit()


@click.command(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option("-A", "--app", "app_spec", metavar="MODULE:APP", help="The application.")
@click.option("--url", help="The store; overrides every other setting of it.")
@click.option("--schema", help="PostgreSQL schema of this app's tables.")
@click.option("--config", type=click.Path(), help="A configuration file.")
@click.option("-v", "--verbose", count=True, help="Log more; repeat it to include tracebacks.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:
    """Winch: background jobs that never slip back.

    The store is --url, $WINCH_URL, url in winch.toml or [tool.winch], or the URL in the app's code;
    without any of them, sqlite:///winch.db. These options may come before or after the command.
    """
    # The worker's commands parse these options themselves; the others look them up in the root.
    given = {name: value for name, value in options.items() if value}
    ctx.default_map = {"dev": given, "worker": given, "worker-child": given}
    if "NO_COLOR" in os.environ:
        ctx.color = False


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(run_command(sys.argv[1:] if argv is None else argv))


def run_command(argv: Sequence[str]) -> int:
    """Run one command; returns the exit code. Errors are one line on stderr."""
    try:
        if "_WINCH_COMPLETE" in os.environ:
            cli.main(list(argv), prog_name="winch")  # a shell asks for completions
        # Not cli.main: it would answer a closed pipe with exit code 1.
        with cli.make_context("winch", list(argv)) as context:
            cli.invoke(context)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.ClickException as error:
        _complain(_sentence(error))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _complain("stopped")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # `winch jobs list | head`: the reader has had enough. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except WinchError as error:
        _trace(argv)
        _complain(str(error))
        return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)
    except TimeoutError as error:  # of --wait --timeout
        _trace(argv)
        _complain(str(error))
        return 1
    except Exception as error:
        if not _trace(argv):
            _complain(f"{type(error).__name__}: {error} (a bug? -vv shows where)")
        return 1


def _sentence(error: click.ClickException) -> str:
    """click's message as one line, with a pointer to the help."""
    message = " ".join(error.format_message().split()).rstrip(".")
    message = within(message)
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None:
        if message.startswith("no such command") and "did you mean" not in message.lower():
            # Only later versions of click name the nearest command of a group.
            name = message.partition("'")[2].partition("'")[0]
            message += did_you_mean(name, context.command.list_commands(context))
        message += f"; see {context.command_path} --help"
    return message


def _complain(message: str) -> None:
    from winch.cli.shared.text import one_line
    from winch.core.values.redact import mask_text

    click.echo(f"winch: {one_line(mask_text(message))}", err=True)


def _trace(argv: Sequence[str]) -> bool:
    """Print the traceback where -vv was given. Reads the raw arguments: parsing may have failed."""
    times = 0
    for word in argv:
        if word == "--":
            break
        if word == "--verbose":
            times += 1
        elif word.startswith("-v") and set(word[1:]) == {"v"}:
            times += len(word) - 1
    if times >= 2:
        from winch.core.values.redact import mask_text

        click.echo(mask_text(traceback.format_exc()), err=True, nl=False)
    return times >= 2


__all__ = ["main"]
