"""`winch migrate`: bring the store's schema up to date."""

from __future__ import annotations

from collections.abc import Callable

import click

from winch.cli import MIGRATE
from winch.cli.shared import text
from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import emit_json, remark, say
from winch.core.errors import ConfigError
from winch.storage.protocol import Driver


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit 4 when a migration is needed.")
@click.option("--sql", is_flag=True, help="Change nothing; print the statements that would run.")
@click.option(
    "--roles", is_flag=True, help="With --sql: also print the least-privilege roles (PostgreSQL)."
)
@click.option(
    "--events",
    type=click.Choice(["off", "full"]),
    help="Whether to record every change of a job as an event.",
)
@json_option
@store_options
def migrate(options: StoreOptions, check: bool, sql: bool, roles: bool, events: str | None) -> None:
    """Bring the store's schema up to date.

    Safe to run at any time and from several places at once; the previous release keeps working on the
    new schema.
    """
    if check and sql:
        raise click.UsageError("--check or --sql, not both")
    if roles and not sql:
        raise click.UsageError("--roles goes with --sql: an administrator runs the statements")
    with opened(options, must_exist=False, events=events) as app:
        driver = app.driver
        if sql:
            statements = (_roles_sql(driver) if roles else driver.migration_sql()).rstrip()
            if options.as_json:
                emit_json({"sql": statements})
            elif statements:
                say(statements)
            else:
                remark("nothing to do")
            return
        if check:
            status = driver.check_schema()
            if options.as_json:
                emit_json(
                    {
                        "store": driver.describe(),
                        "current": status.current,
                        "newest": status.newest,
                        "is_ready": status.is_ready,
                    }
                )
            else:
                word = "up to date" if status.is_ready else "needs `winch migrate`"
                has = "no schema" if status.current is None else f"schema {status.current}"
                where = text.one_line(driver.describe())
                say(f"{where}: {has}, this release has {status.newest}: {word}")
            if not status.is_ready:
                click.get_current_context().exit(MIGRATE)
            return
        steps = app.migrate()
        where = driver.describe()
    if options.as_json:
        emit_json({"store": where, "steps": steps})
        return
    for step in steps:
        say(f"ran {text.one_line(step)}")
    say(f"{text.one_line(where)} is up to date")


def _roles_sql(driver: Driver) -> str:
    roles_sql: Callable[[], str] | None = getattr(driver, "roles_sql", None)
    if roles_sql is None:
        raise ConfigError(f"{driver.describe()} has no roles; --roles is for PostgreSQL")
    return roles_sql()
