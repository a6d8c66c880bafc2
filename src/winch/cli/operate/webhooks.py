"""`winch webhooks`: endpoints of webhooks and their deliveries."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import click
import msgspec

from winch.areas.webhooks.endpoints import Endpoint
from winch.cli.shared import text
from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import Column, Table, emit_json, remark, report_each, say
from winch.cli.shared.question import dry_run_option, may_go_on, yes_option
from winch.core.errors import ConfigError
from winch.core.values.redact import mask_text

_secret_option = click.option(
    "--secret-stdin", is_flag=True, help="Read the secret from standard input instead of a new one."
)


@click.group()
def webhooks() -> None:
    """Look at webhook endpoints, add, disable, rotate and replay."""


@webhooks.command("list")
@click.option("--tenant", help="Only endpoints of this tenant.")
@json_option
@store_options
def list_(options: StoreOptions, tenant: str | None) -> None:
    """List the endpoints."""
    with opened(options) as app:
        found = app.webhooks.list(tenant=tenant)
    if options.as_json:
        emit_json({"endpoints": [endpoint_data(one) for one in found]})
        return
    if not found:
        remark("no endpoints")
        return
    table = Table(
        [
            Column("ENDPOINT"),
            Column("TENANT", gives_way=True),
            Column("URL", gives_way=True),
            Column("EVENTS", gives_way=True, drop=1),
            Column("NOTE", gives_way=True),
        ]
    )
    for one in found:
        cells = (one.id, one.tenant or "", mask_text(one.url), ", ".join(one.events), note(one))
        table.add(*(text.one_line(cell) or " " for cell in cells))
    table.show()


def note(one: Endpoint) -> str:
    """What is out of the ordinary about it."""
    if one.is_disabled:
        return f"disabled: {one.reason}" if one.reason else "disabled"
    if one.failures:
        return f"{text.count(one.failures, 'attempt')} in a row failed"
    return ""


def endpoint_data(one: Endpoint) -> dict[str, Any]:
    return {**msgspec.structs.asdict(one), "url": mask_text(one.url)}


@webhooks.command()
@click.argument("address", metavar="URL")
@click.option("--event", "events", multiple=True, required=True, help="A name, order.* or *; repeat it.")
@click.option("--tenant", help="The customer whose events it gets; without it, all.")
@_secret_option
@json_option
@store_options
def subscribe(
    options: StoreOptions, address: str, events: tuple[str, ...], tenant: str | None, secret_stdin: bool
) -> None:
    """Add an endpoint; prints its id and, once, its new secret."""
    secret = _given_secret(secret_stdin)
    with opened(options, must_exist=False) as app:
        made = app.webhooks.subscribe(address, events, tenant=tenant, secret=secret)
    shown = {} if secret_stdin else {"secret": made.secret}
    if options.as_json:
        emit_json({**endpoint_data(made.endpoint), "secret": shown.get("secret")})
        return
    say(made.endpoint.id)
    for new in shown.values():
        say(new)
        remark("the second line is the secret; it is not shown again")


@webhooks.command()
@click.argument("endpoint")
@click.option("--overlap", default="24h", show_default=True, help="How long the old secret signs too.")
@_secret_option
@json_option
@store_options
def rotate(options: StoreOptions, endpoint: str, overlap: str, secret_stdin: bool) -> None:
    """Give an endpoint a new secret; prints it once."""
    secret = _given_secret(secret_stdin)
    with opened(options) as app:
        new = app.webhooks.rotate(endpoint, secret=secret, overlap=overlap)
    if options.as_json:
        emit_json({"id": endpoint, "secret": None if secret_stdin else new})
    elif not secret_stdin:
        say(new)
    if not options.as_json:
        remark(f"the old secret signs too for {overlap}")


@webhooks.command()
@click.argument("endpoint")
@click.option("-n", "--limit", default=10, type=click.IntRange(1, 200), help="How many attempts.")
@json_option
@store_options
def show(options: StoreOptions, endpoint: str, limit: int) -> None:
    """Show an endpoint and its newest deliveries."""
    with opened(options) as app:
        one = app.webhooks.get(endpoint)
        lines = app.webhooks.deliveries(endpoint, limit=limit)
    if options.as_json:
        deliveries = [msgspec.structs.asdict(line) for line in lines]
        emit_json({**endpoint_data(one), "deliveries": deliveries})
        return
    say(text.bold(one.id))
    fields = {
        "url": mask_text(one.url),
        "tenant": one.tenant or "",
        "events": ", ".join(one.events),
        "secrets": f"{one.secrets} sign" if one.secrets > 1 else "1 signs",
        "note": note(one),
    }
    for title, value in fields.items():
        if value:
            say(f"  {text.padded(title, 10)}{text.one_line(value)}")
    if not lines:
        return
    say()
    table = Table(
        [
            Column("AT"),
            Column("EVENT"),
            Column("TYPE", gives_way=True),
            Column("ATTEMPT", is_right=True),
            Column("STATUS"),
            Column("ERROR", gives_way=True),
        ]
    )
    for line in lines:
        status = "" if line.status is None else str(line.status)
        table.add(text.stamp(line.at), line.event, line.type, str(line.attempt), status,
                  text.one_line(line.error or "") or " ")  # fmt: skip
    table.show(indent="  ")


@webhooks.command()
@click.argument("endpoints", nargs=-1, required=True, metavar="ENDPOINT...")
@click.option("--reason", help="Shown with the endpoint.")
@json_option
@store_options
def disable(options: StoreOptions, endpoints: tuple[str, ...], reason: str | None) -> None:
    """Send nothing to the endpoints until they are enabled."""
    with opened(options) as app:
        for endpoint in endpoints:
            app.webhooks.disable(endpoint, reason=reason)
    report_each("endpoints", endpoints, "disabled", as_json=options.as_json)


@webhooks.command()
@click.argument("endpoints", nargs=-1, required=True, metavar="ENDPOINT...")
@json_option
@store_options
def enable(options: StoreOptions, endpoints: tuple[str, ...]) -> None:
    """Send to the endpoints again, from now on."""
    with opened(options) as app:
        for endpoint in endpoints:
            app.webhooks.enable(endpoint)
    report_each("endpoints", endpoints, "enabled", as_json=options.as_json)


@webhooks.command()
@click.argument("endpoint")
@yes_option
@json_option
@store_options
def remove(options: StoreOptions, endpoint: str, yes: bool) -> None:
    """Remove an endpoint, its secrets and its log."""
    with opened(options) as app:
        one = app.webhooks.get(endpoint)
        may_go_on(f"Remove the endpoint {mask_text(one.url)} for good?", yes=yes)
        app.webhooks.remove(endpoint)
    report_each("endpoints", (endpoint,), "removed", as_json=options.as_json)


@webhooks.command()
@click.argument("endpoint")
@click.option("--from", "start", metavar="TIME", help="Events from this time, in ISO 8601.")
@click.option("--to", "end", metavar="TIME", help="Up to this time, not included; without it, now.")
@click.option(
    "--event", "events", multiple=True, metavar="ID", help="The event with this id; repeat it."
)
@yes_option
@dry_run_option
@json_option
@store_options
def replay(
    options: StoreOptions,
    endpoint: str,
    start: str | None,
    end: str | None,
    events: tuple[str, ...],
    yes: bool,
    dry_run: bool,
) -> None:
    """Send events to an endpoint again, in the order of each key; needs the app (-A)."""
    given: dict[str, Any] = {
        "start": _moment(start, "--from"),
        "end": _moment(end, "--to"),
        "events": list(events) or None,
    }
    with opened(options, needs_tasks=True) as app:
        done = app.webhooks.replay(endpoint, dry_run=True, **given)
        if done.matched and not dry_run:
            may_go_on(f"Send {text.count(done.matched, 'event')} to {endpoint} again?", yes=yes)
            done = app.webhooks.replay(endpoint, **given)
    if options.as_json:
        emit_json({**msgspec.structs.asdict(done), "is_dry_run": dry_run})
    elif dry_run:
        say(f"{text.count(done.matched, 'event')} to send")
    else:
        say(f"{text.count(done.enqueued, 'event')} on the way")


def _moment(given: str | None, option: str) -> datetime | None:
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(given)
    except ValueError as error:
        raise ConfigError(f"{option} must be a time in ISO 8601, got {given[:40]!r}") from error
    return moment if moment.tzinfo is not None else moment.astimezone()


def _given_secret(is_given: bool) -> str | None:
    """A secret on the command line would be in the history of the shell."""
    return sys.stdin.readline().strip() if is_given else None
