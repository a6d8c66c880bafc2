"""`winch token`: access to the HTTP API and the dashboard."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from winch.cli.shared import text
from winch.cli.shared.audit import noted
from winch.cli.shared.options import StoreOptions, json_option, opened, store_options
from winch.cli.shared.output import Column, Table, emit_json, remark, say
from winch.core.errors import ConfigError
from winch.core.values.duration import parse_duration


@click.group()
def token() -> None:
    """Create, list and revoke access tokens."""


@token.command("create")
@click.argument("name")
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    type=click.Choice(["read", "enqueue", "work", "operate", "admin"]),
    help="A role of the token; may be repeated.",
)
@click.option("--queue", "queues", multiple=True, help="Only jobs of this queue; may be repeated.")
@click.option("--task", "tasks", multiple=True, help="Only this task; may be repeated.")
@click.option("--tenant", help="Only this tenant's jobs.")
@click.option("--expires", metavar="DURATION", help="Expire after this time, like 90d.")
@json_option
@store_options
def create(
    options: StoreOptions,
    name: str,
    roles: tuple[str, ...],
    queues: tuple[str, ...],
    tasks: tuple[str, ...],
    tenant: str | None,
    expires: str | None,
) -> None:
    """Create a token and print it once."""
    from winch.web.tokens import Tokens

    with opened(options, must_exist=False) as app:
        made, kept = app.client.run(
            Tokens(app.ready()).create(
                name,
                roles,
                queues=queues or None,
                tenant=tenant,
                tasks=tasks or None,
                expires=None if expires is None else parse_duration(expires, "--expires"),
            )
        )
        noted(app, "create token", kept.id, name=kept.name, roles=list(kept.roles))
    if options.as_json:
        emit_json({"token": made, "id": kept.id, "name": kept.name, "roles": list(kept.roles)})
        return
    say(made)
    remark(f"token {kept.id}; it is not kept and cannot be shown again")


@token.command("list")
@json_option
@store_options
def list_(options: StoreOptions) -> None:
    """List the tokens without their secrets."""
    from winch.web.tokens import Tokens

    with opened(options) as app:
        found = app.client.run(Tokens(app.ready()).list())
    if options.as_json:
        emit_json(
            {
                "tokens": [
                    {
                        "id": one.id,
                        "name": one.name,
                        "roles": list(one.roles),
                        "queues": None if one.queues is None else list(one.queues),
                        "tasks": None if one.tasks is None else list(one.tasks),
                        "tenant": one.tenant,
                        "created_at": one.created_at,
                        "expires_at": one.expires_at,
                        "used_at": one.used_at,
                    }
                    for one in found
                ]
            }
        )
        return
    table = Table(
        [
            Column("ID"),
            Column("NAME", gives_way=True),
            Column("ROLES"),
            Column("QUEUES", gives_way=True, drop=1),
            Column("EXPIRES"),
            Column("USED"),
        ]
    )
    at = text.now()
    for one in found:
        is_live = one.is_live(datetime.now(UTC))
        table.add(
            one.id,
            text.one_line(one.name),
            ", ".join(one.roles),
            text.one_line(", ".join(one.queues or ("all",))),
            "never"
            if one.expires_at is None
            else text.ago(one.expires_at, at)
            if is_live
            else "expired",
            "never" if one.used_at is None else text.ago(one.used_at, at),
        )
    if found:
        table.show()
    else:
        remark("no tokens; make one with winch token create")


@token.command("revoke")
@click.argument("identity", metavar="ID")
@store_options
def revoke(options: StoreOptions, identity: str) -> None:
    """Revoke a token; servers refuse it within a second."""
    from winch.web.tokens import Tokens

    with opened(options) as app:
        is_gone = app.client.run(Tokens(app.ready()).revoke(identity))
        if is_gone:
            noted(app, "revoke token", identity)
    if not is_gone:
        raise ConfigError(f"no token with id {identity!r}; see winch token list")
    remark(f"token {text.one_line(identity)} is revoked")
