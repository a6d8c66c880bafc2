"""`winch why`: the reason in words."""

from __future__ import annotations

import click

from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import emit_json, say
from winch.cli.shared.text import one_line
from winch.core.values.redact import mask_text


@click.command()
@click.argument("job_id", metavar="ID")
@json_option
@store_options
def why(options: StoreOptions, job_id: str) -> None:
    """Explain why a job is in its state."""
    with opened(options) as app:
        job = app.jobs.get(job_id)
        reason = mask_text(job.why())
    if options.as_json:
        emit_json({"id": job.id, "task": job.record.task, "state": job.state, "why": reason})
    else:
        say(one_line(reason))
