"""The options that every command has, and the app they lead to."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from winch.app import App
from winch.core.errors import ConfigError, InvalidPayload, SchemaMismatch
from winch.core.values import codec
from winch.engine.base.settings import load
from winch.engine.client.audit import acting

NAMES = ("app_spec", "url", "schema", "config")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of every command: which store, which app, how to print."""

    app_spec: str | None = None
    url: str | None = None
    schema: str | None = None
    config: str | None = None
    verbose: int = 0
    as_json: bool = False


def store_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the common options; the command gets them as one `StoreOptions`, its first argument."""

    @functools.wraps(command)
    def parsed(*args: Any, verbose: int, as_json: bool = False, **kwargs: Any) -> None:
        root = click.get_current_context().find_root().params
        # Given before the command (`winch --url … jobs list`) or after it; the later one counts.
        given = {name: kwargs.pop(name) or root.get(name) for name in NAMES}
        verbose += root.get("verbose", 0)
        start_logging(verbose)
        command(StoreOptions(**given, verbose=verbose, as_json=as_json), *args, **kwargs)

    for option in reversed(
        (
            click.option("-A", "--app", "app_spec", metavar="MODULE:APP", help="The application."),
            click.option("--url", help="The store; overrides every other setting of it."),
            click.option("--schema", help="PostgreSQL schema of this app's tables."),
            click.option("--config", type=click.Path(), help="A configuration file."),
            click.option(
                "-v", "--verbose", count=True, help="Log more; repeat it to include tracebacks."
            ),
        )
    ):
        parsed = option(parsed)
    return parsed


json_option: Callable[[Any], Any] = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document."
)


port_option: Callable[[Any], Any] = click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8090,
    show_default=True,
    help="The port; 0 picks a free one.",
)

limit_option: Callable[[Any], Any] = click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most this many."
)


def page_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a list that may be longer than a page."""
    after = click.option("--after", help="Continue after this id: the next page.")
    decorated: Callable[..., Any] = limit_option(after(command))
    return decorated


@contextmanager
def opened(
    options: StoreOptions, *, must_exist: bool = True, needs_tasks: bool = False, **cli: Any
) -> Iterator[App]:
    """The app the options lead to, closed afterwards.

    An app that is named anywhere is imported, because its code may say which store it uses; --url on
    the command line makes that unnecessary. Without an app a bare one does: the store is enough to
    look at jobs and act on them.

    A store that does not exist is an error, also where Winch could make it: an empty answer from a
    mistyped URL would look as if all were well. `needs_tasks`: the app must be there, whatever --url is.
    """
    app = find_app(options, needs_tasks=needs_tasks)
    app.configure({"url": options.url, "schema": options.schema, **cli}, config=options.config)
    try:
        if must_exist and app.driver.check_schema().current is None:
            raise SchemaMismatch(
                f"there is no Winch store at {app.driver.describe()} (url from "
                f"{app.loaded.origins['url']}); check --url, or create it with `winch migrate`"
            )
        with acting(via="cli"):
            yield app
    finally:
        app.close()


def find_app(options: StoreOptions, *, needs_tasks: bool = False) -> App:
    spec = options.app_spec
    if spec is None and (options.url is None or needs_tasks):
        spec = load(config=options.config).settings.app
    if spec is None:
        return App()
    from winch.cli.shared.load import load_app

    try:
        return load_app(spec, options.config)
    except ConfigError as error:
        if options.app_spec is not None or needs_tasks:
            raise
        raise ConfigError(f"{error}; with --url the store is reached without the app") from error


def json_arguments(text: str) -> dict[str, Any]:
    """The value of --args."""
    args = codec.loads_strict(text, what="--args")
    if not isinstance(args, dict):
        raise InvalidPayload(f"--args must be a JSON object of arguments, got {text}")
    return args


def start_logging(verbose: int) -> None:
    """Logs go to stderr, data to stdout. Quiet unless asked: the answer is what counts."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s", level=level)
