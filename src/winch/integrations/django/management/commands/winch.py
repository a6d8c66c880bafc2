"""`manage.py winch worker|migrate|doctor|prune|dead|schedules`.

The worker is `winch worker` itself, in this process's place, with the project's settings. The other
words act on the store of one entry of TASKS; the rest of the command line of `winch` works as well:
`winch jobs list -A "winch.integrations.django.worker:make_app()"`.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser
from difflib import get_close_matches
from typing import Any

from django.conf import ENVIRONMENT_VARIABLE
from django.core.management.base import BaseCommand, CommandError

from winch.errors import WinchError
from winch.integrations._command import become_winch
from winch.integrations.django.backend import WinchBackend
from winch.integrations.django.worker import ENV, SPEC
from winch.types import worker_flags

# What is passed on to the command line of `winch` as it is.
WORDS = ("doctor", "dead", "schedules")
# The names that users of django-tasks-db know, beside those of `winch worker`.
ALSO = {"queues": ["--queue-name"], "burst": ["--batch"]}


class Command(BaseCommand):
    """Workers and the store behind Django's tasks."""

    help = "Run Winch's workers and look after its store."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--backend", default="default", help="The entry of TASKS (default: default)."
        )
        words = parser.add_subparsers(dest="word", required=True)
        worker = words.add_parser("worker", help="Run jobs until stopped.")
        self._add_worker(worker)
        words.add_parser("migrate", help="Bring the store's schema up to date.")
        prune = words.add_parser("prune", help="Delete final jobs whose retention is over, now.")
        prune.add_argument("--batch-size", type=int, default=1000)
        for word in WORDS:
            added = words.add_parser(word, help=f"`winch {word}` for this store.", add_help=False)
            added.add_argument("rest", nargs="...")

    def _add_worker(self, parser: ArgumentParser) -> None:
        for name, flag in worker_flags().items():
            names = [*flag.names, *ALSO.get(name, ())]
            if flag.kind is bool:
                parser.add_argument(*names, dest=name, action="store_true", help=flag.help)
            elif flag.is_repeated:
                parser.add_argument(*names, dest=name, action="append", help=flag.help)
            else:
                text = flag.help.replace("%", "%%")
                parser.add_argument(*names, dest=name, type=flag.kind, default=None, help=text)
        parser.add_argument("--exclude-queues", default="", help="Queues to leave out, with commas.")
        parser.add_argument("--max-tasks", type=int, help="Exit after this many tasks.")

    def handle(self, *args: Any, **options: Any) -> None:
        word, alias = options["word"], options["backend"]
        backend = self._backend(alias)
        if word == "worker":
            self._warn_of_unknown(backend, options["queues"] or "")
            _become(worker_command(backend, options), alias)
        elif word in WORDS:
            _become([word, *options["rest"]], alias)
        try:
            if word == "migrate":
                self._migrate(backend)
            elif word == "prune":
                self._prune(backend, options["batch_size"])
        except WinchError as error:
            raise CommandError(str(error)) from error
        finally:
            backend.store.app.close()

    def _backend(self, alias: str) -> WinchBackend:
        from winch.integrations.django.api import task_backends

        if alias not in list(task_backends):
            raise CommandError(f"TASKS has no entry {alias!r}; it has {', '.join(task_backends)}")
        backend = task_backends[alias]
        if not isinstance(backend, WinchBackend):
            raise CommandError(
                f"TASKS[{alias!r}] is {type(backend).__qualname__}, not a WinchBackend; "
                "name another entry with --backend"
            )
        return backend

    def _warn_of_unknown(self, backend: WinchBackend, queues: str) -> None:
        """Name the queues that no task of this entry can use: they are probably misspelt."""
        given = {_name(entry) for entry in queues.split(",") if not entry.startswith("-")}
        for name in sorted(given - {"", "*", *backend.queues}) if backend.queues else ():
            close = get_close_matches(name, backend.queues, 1)
            self.stderr.write(
                f"TASKS[{backend.alias!r}]['QUEUES'] has no queue {name!r}"
                + (f"; did you mean {close[0]!r}?" if close else ", so no task is enqueued there")
            )

    def _migrate(self, backend: WinchBackend) -> None:
        steps = backend.store.app.migrate()
        for step in steps:
            self.stdout.write(f"applied {step}")
        if not steps:
            self.stdout.write("the schema is up to date")

    def _prune(self, backend: WinchBackend, size: int) -> None:
        app = backend.store.app
        pruned = 0
        while deleted := app.client.run(_pruning(app, size)):
            pruned += deleted
            if deleted < size:
                break
        self.stdout.write(f"deleted {pruned} jobs")


def _pruning(app: Any, size: int) -> Any:
    return (yield app.driver.prune(limit=size))


def worker_command(backend: WinchBackend, options: dict[str, Any]) -> list[str]:
    """The words of `winch worker` for what `manage.py winch worker` was given."""
    queues = options["queues"] or ",".join(sorted(backend.queues)) or "*"
    excluded = [name.strip() for name in options["exclude_queues"].split(",") if name.strip()]
    if excluded and "*" in queues.split(","):
        queues = ",".join([queues, *(f"-{name}" for name in excluded)])
    elif excluded:
        queues = ",".join(entry for entry in queues.split(",") if _name(entry) not in excluded)
        if not queues:
            raise CommandError("no queue is left: --exclude-queues names all of them")
    given = {**options, "queues": queues}
    if options["max_tasks"] is not None:
        given |= {"max_jobs": options["max_tasks"], "no_replace": True}
    command = ["worker"]
    for name, flag in worker_flags().items():
        value = given[name]
        if flag.kind is bool:
            command += flag.names[-1:] if value else ()
        elif flag.is_repeated:
            command += [word for one in value or () for word in (flag.names[-1], str(one))]
        elif value is not None:
            command += [flag.names[-1], str(value)]
    return command


def _name(entry: str) -> str:
    """The queue of an entry such as "mail" or "mail:5"."""
    return entry.partition(":")[0].strip()


def _become(words: list[str], alias: str) -> None:
    """Go on as `winch` in this process, with the app of this entry of TASKS."""
    if ENVIRONMENT_VARIABLE not in os.environ:
        raise CommandError(f"{ENVIRONMENT_VARIABLE} must name the project's settings")
    become_winch(words, SPEC, {ENV: alias})
