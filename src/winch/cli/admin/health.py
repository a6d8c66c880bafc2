"""`winch health`: a probe for containers and load balancers. Exit 0 or 1, nothing else."""

from __future__ import annotations

import click

from winch.cli.operate.workers import is_live
from winch.cli.shared import text
from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import emit_json, say
from winch.core.errors import ConfigError, StorageError
from winch.core.values.redact import mask_text
from winch.engine.observe import heartbeat_file

Check = tuple[str, bool, str]


@click.command()
@click.option("--workers", "least", type=click.IntRange(1), help="Also require this many live workers.")
@click.option(
    "--max-age",
    type=click.IntRange(1),
    metavar="SECONDS",
    help="Do not contact the store: this user's workers and servers must have been active in this time.",
)
@json_option
@store_options
def health(options: StoreOptions, least: int | None, max_age: int | None) -> None:
    """Check whether the store can be used; exit 0 or 1, for probes.

    With --max-age it reads the heartbeat files of this machine and never contacts the store: a
    container's liveness probe must not restart every worker because a database is unreachable.
    """
    if max_age is not None and least is not None:
        raise ConfigError("--workers reads the store, --max-age does not; pass one of them")
    checks = _of_store(options, least) if max_age is None else _of_files(max_age)
    is_well = all(is_ok for _, is_ok, _ in checks)
    if options.as_json:
        shown = {name: {"status": _word(is_ok), "detail": note} for name, is_ok, note in checks}
        emit_json({"status": _word(is_well), "checks": shown})
    else:
        for name, is_ok, note in checks:
            mark = text.state(text.padded(_word(is_ok), 5), "completed" if is_ok else "dead")
            say(f"{mark} {name:<8} {text.one_line(note)}")
    if not is_well:
        click.get_current_context().exit(1)


def _of_files(max_age: int) -> list[Check]:
    ages = heartbeat_file.ages()
    if not ages:
        note = f"no live worker or server has a file in {heartbeat_file.folder()}"
        return [("process", False, note)]
    return [
        ("process", age <= max_age, f"{pid} turned {age:.0f}s ago, at most {max_age}s wanted")
        for pid, age in sorted(ages.items())
    ]


def _of_store(options: StoreOptions, least: int | None) -> list[Check]:
    checks: list[Check] = []
    with opened(options, must_exist=False) as app:
        try:
            status = app.driver.check_schema()
            checks.append(("store", True, app.driver.describe()))
            found = f"version {status.current or 'none'} of {status.newest}"
            checks.append(("schema", status.is_ready, found))
            if least is not None and status.is_ready:
                live = sum(is_live(session) for session in app.workers.list())
                checks.append(("workers", live >= least, f"{live} live, {least} wanted"))
        except StorageError as error:
            checks.append(("store", False, mask_text(str(error))))
    return checks


def _word(is_ok: bool) -> str:
    return "pass" if is_ok else "fail"
