"""`winch signal`: send a signal to the job that waits for it."""

from __future__ import annotations

import click

from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import emit_json, say
from winch.core.values.codec import loads_strict


@click.command()
@click.argument("name")
@click.option("--payload", default="null", show_default=True, help="The payload as JSON.")
@click.option("--id", "signal_id", help="A second signal with the same id changes nothing.")
@json_option
@store_options
def signal(options: StoreOptions, name: str, payload: str, signal_id: str | None) -> None:
    """Send a signal to the job that waits for it, now or later."""
    value = loads_strict(payload, what="--payload")
    with opened(options) as app:
        is_new = app.signal(name, value, id=signal_id)
    if options.as_json:
        emit_json({"name": name, "new": is_new})
    else:
        say("sent" if is_new else "known already; nothing changed")
