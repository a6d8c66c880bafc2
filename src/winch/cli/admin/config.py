"""`winch config`: the settings in force and where they came from."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click
import msgspec

from winch.cli.shared import text
from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import Column, Table, emit_json
from winch.core.policy.alerting import AlertRules
from winch.core.values.duration import format_duration
from winch.core.values.redact import mask_text
from winch.engine.base.encryption import Keyring

# A webhook's address is often all that it takes to use it.
SECRET = frozenset({"alert_secret", "alert_webhook", "faktory_password"})


@click.command()
@click.option("--origin", is_flag=True, help="Show the origin of each value.")
@json_option
@store_options
def config(options: StoreOptions, origin: bool) -> None:
    """Show the settings in force; secrets are masked.

    The command line goes before $WINCH_..., the app's code, --config or $WINCH_CONFIG, winch.toml,
    [tool.winch] in pyproject.toml, and the defaults.
    """
    with opened(options, must_exist=False, app=options.app_spec) as app:
        loaded = app.loaded
    values = {
        name: "***" if name in SECRET and value is not None else _plain(value)
        for name, value in msgspec.structs.asdict(loaded.settings).items()
    }
    if options.as_json:
        shown: dict[str, Any] = values
        if origin:
            shown = {
                name: {"value": value, "origin": loaded.origins[name]} for name, value in values.items()
            }
        emit_json(shown)
        return
    table = Table([Column("SETTING"), Column("VALUE")] + [Column("ORIGIN")] * origin)
    for name, value in values.items():
        cells = [name, "" if value is None else text.one_line(str(value))]
        table.add(*cells, *([loaded.origins[name]] if origin else []))
    table.show()


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, AlertRules):
        return str(value)
    if isinstance(value, Keyring):
        return repr(value)  # the names of the keys; never a key
    return mask_text(value) if isinstance(value, str) else value
