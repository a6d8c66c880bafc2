"""Write the reference pages that follow from the code: the commands, the settings, the HTTP API and the public names.

    python scripts/reference_pages.py            write docs/reference/*.md and the table in docs/configuration.md
    python scripts/reference_pages.py --check    only compare; exit 1 and name the pages that differ

The meaning of each setting stands here, because a struct has no place for it; names, variables and defaults come from `Settings`.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

DOCS = Path(__file__).parent.parent / "docs"
NOTICE = "<!-- Written by scripts/reference_pages.py (make reference); do not edit. -->"
COMMON = {"app_spec", "url", "schema", "config", "verbose", "help"}

# page -> (title, opening, public names in the order in which a reader needs them)
API: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "app": (
        "App",
        "An `App` holds the tasks of your program and the store that keeps their jobs.",
        ("winch.App",),
    ),
    "areas": (
        "Areas of an app",
        "Everything an operator does to jobs, queues and workers is a method of one attribute of the app. Each method has an async "
        "twin whose name begins with `a`: `app.jobs.get(…)` blocks, `await app.jobs.aget(…)` does not.",
        (
            "winch.areas.jobs.Jobs",
            "winch.areas.dead.Dead",
            "winch.areas.queues.Queues",
            "winch.areas.schedules.Schedules",
            "winch.areas.workers.Workers",
            "winch.areas.limits.Limits",
            "winch.areas.flows.Flows",
            "winch.areas.outbox.Outbox",
            "winch.areas.webhooks.area.Webhooks",
            "winch.areas.idempotency.Idempotency",
            "winch.engine.client.audit.AuditLog",
        ),
    ),
    "tasks": (
        "Tasks, jobs and handlers",
        "What `@app.task` makes, what `enqueue` returns, what a handler receives, and what it may raise to choose an outcome.",
        (
            "winch.Task",
            "winch.Job",
            "winch.JobState",
            "winch.Context",
            "winch.RetryAfter",
            "winch.Snooze",
            "winch.Cancel",
            "winch.Discard",
            "winch.Depends",
            "winch.INJECTED",
            "winch.Middleware",
            "winch.JobEvent",
            "winch.Collected",
            "winch.Schedule",
            "winch.__version__",
        ),
    ),
    "policies": (
        "Policies",
        "Values that a task or a call takes: how to retry, what to limit, what is unique, how long to keep.",
        (
            "winch.Retry",
            "winch.RetryBudget",
            "winch.Limit",
            "winch.Rate",
            "winch.Fifo",
            "winch.Breaker",
            "winch.Unique",
            "winch.Retention",
            "winch.Keyring",
        ),
    ),
    "flows": (
        "Flows",
        "Functions that compose jobs. [The how-to](../howto/flows.md) shows each shape.",
        ("winch.chain", "winch.group", "winch.chord", "winch.map_", "winch.batch", "winch.flow"),
    ),
    "sinks": (
        "Outbox sinks",
        "Where messages of the [outbox](../howto/outbox.md) go.",
        ("winch.Sink", "winch.Message", "winch.HttpSink", "winch.RedisSink"),
    ),
    "web": (
        "Web and telemetry",
        "Mount the dashboard in your own application, and publish traces and metrics.",
        (
            "winch.web.asgi",
            "winch.web.wsgi",
            "winch.web.Access",
            "winch.integrations.otel.OpenTelemetry",
        ),
    ),
    "integrations": (
        "Integrations",
        "Winch in other frameworks: [FastAPI](../howto/fastapi.md), [Flask](../howto/flask.md), [Litestar](../howto/litestar.md), "
        "[SQLAlchemy](../howto/sqlalchemy.md), [AWS Lambda](../howto/aws-lambda.md), [Sentry, structlog and OpenTelemetry logs](../howto/errors-and-logs.md).",
        (
            "winch.integrations.fastapi.job_router",
            "winch.integrations.starlette.lifespan",
            "winch.integrations.starlette.jobs_of",
            "winch.integrations.starlette.accepted",
            "winch.integrations.starlette.job_route",
            "winch.integrations.starlette.mount_dashboard",
            "winch.integrations.flask.Winch",
            "winch.integrations.flask.accepted",
            "winch.integrations.flask.job_blueprint",
            "winch.integrations.flask.mount_dashboard",
            "winch.integrations.flask.jobs_of",
            "winch.integrations.litestar.WinchPlugin",
            "winch.integrations.litestar.accepted",
            "winch.integrations.litestar.jobs_of",
            "winch.integrations.aws_lambda.handler",
            "winch.integrations.status.JobStatus",
            "winch.integrations.sqlalchemy.JobSession",
            "winch.integrations.sqlalchemy_async.AsyncJobSession",
            "winch.integrations.sqlalchemy.SessionJobs",
            "winch.integrations.sqlalchemy_async.AsyncSessionJobs",
            "winch.integrations.sqlalchemy.RequireSession",
            "winch.integrations.sqlalchemy.without_session",
            "winch.integrations.sqlalchemy.begin",
            "winch.integrations.sentry.Sentry",
            "winch.integrations.structlog.Structlog",
            "winch.integrations.otel_logs.OpenTelemetryLogs",
        ),
    ),
    "testing": (
        "Testing",
        "Names of `winch.testing`. [The how-to](../howto/testing.md) shows how to use them.",
        (),
    ),
    "errors": (
        "Errors",
        "Every error that Winch raises is a `WinchError`. All of them are in `winch.errors` and at the top level (`winch.JobNotFound`).",
        (),
    ),
    "types": (
        "Types",
        "Records and handles that the API takes and returns, in `winch.types`. Import them for annotations.",
        (),
    ),
}
WHOLE = {"testing": "winch.testing", "errors": "winch.errors", "types": "winch.types"}
# Parts of App that Winch uses itself. They are not for callers and have no line in the reference.
INNER = (
    "client",
    "clock",
    "configure",
    "connected",
    "driver",
    "loaded",
    "ready",
    "runtime",
    "spool",
    "standing_in",
)

MEANING: dict[str, str] = {
    "url": "The store: `sqlite:///file`, `postgresql://…`, `redis://…` or `valkey://…` (see [Redis](howto/redis.md)), or `memory://`. "
    "`env:NAME` reads the URL from another variable.",
    "schema": "PostgreSQL: the schema of the tables, `winch` by default. Two apps with two schemas share one database without meeting. "
    "Redis: the first part of every key.",
    "app": "The application, as `module:app`, for commands that need it.",
    "events": "`full` records every change of every job, for audits and reliability runs.",
    "lease": "How long a silent worker keeps its jobs. At least three heartbeats.",
    "heartbeat": "How often a worker extends its lease.",
    "sweep": "How often Winch looks for lost workers.",
    "poll": "How often an idle worker looks for jobs when no wake-up arrives.",
    "grace": "How long running jobs may continue after a stop is requested.",
    "concurrency": "Jobs that run at the same time in each worker process.",
    "processes": "Worker processes under one supervisor.",
    "kill_after": "How long an interrupted handler may take to end before the worker abandons or kills it.",
    "crash_limit": "How many crashes make a job that kills its process [dead](howto/workers.md#isolation). From 1 to 50.",
    "crash_window": "Crashes that are further apart than this are not counted together.",
    "misfire_deadline": "How late a missed time of a [schedule](howto/schedules.md#missed-and-overlapping-times) may still get its job, where the schedule sets no deadline. At least `10s`.",
    "queue_limits": "Jobs of a queue that each worker process runs at the same time: `mail=2,sms=1`, or a table.",
    "queue_rates": "Jobs of a queue that each worker process claims in a time: `mail=10/s`, or a table.",
    "max_jobs": "Replace a worker process after it has started this many jobs.",
    "max_memory": "Replace a worker process that uses more memory than this, for example `512MB`.",
    "max_lifetime": "Replace a worker process after this time, plus or minus 10 %.",
    "keys": "Keys that [encrypt](howto/encryption.md) arguments, results and checkpoints: `k2:base64,k1:base64`. The first key writes; all keys read.",
    "move_to": "The store that jobs [may move to](howto/change-store.md). Until a move to it begins, the setting changes nothing.",
    "spool": "A file that keeps jobs [while the store is out of reach](#when-the-store-is-out-of-reach). Use an absolute path.",
    "alerts": "When to alert: `depth=50000 oldest=5m dead=off`, or `off`. The defaults are in [Alerts](howto/telemetry.md#alerts).",
    "alert_webhook": "Where Winch posts alerts: an `https://` address.",
    "alert_secret": "The secret that signs alerts: `whsec_…` or any text.",
    "alert_networks": "Private networks that a webhook may call: `10.0.0.0/8`.",
    "trusted_proxies": "Proxies in front of `winch serve` whose `X-Forwarded-For`, `-Proto` and `-Host` headers count: `10.0.0.0/8,127.0.0.1/32`.",
    "faktory_password": "The password of [Faktory clients](howto/faktory.md) of `winch serve --faktory`.",
}
# Shown instead of a default that is no plain value.
SHOWN = {"schema": "`winch`", "alerts": "see [Alerts](howto/telemetry.md#alerts)"}


# -- commands --------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its whole name, groups before their commands."""
    from winch.cli import COMMANDS, HIDDEN

    for name, (module, attribute, _) in COMMANDS.items():
        if name in HIDDEN:
            continue
        command = getattr(importlib.import_module(f"winch.cli.{module}"), attribute)
        yield from below(f"winch {name}", command)


def below(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for child in command.commands.values():
            if not child.hidden:
                yield from below(f"{name} {child.name}", child)


def plain(text: str | None) -> str:
    """The help of a command as Markdown paragraphs."""
    paragraphs = re.split(r"\n\s*\n", (text or "").replace("\b", "").strip())
    return "\n\n".join(cell(" ".join(part.split())) for part in paragraphs)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("'*", "'\\*")


def option_row(option: click.Parameter) -> str:
    context = click.Context(click.Command("winch"))
    if isinstance(option, click.Option):
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        record = option.get_help_record(context)
        meaning = record[1] if record else ""
        kind = "" if option.is_flag or option.count else f" `{option.make_metavar(context)}`"
        return f"| {names}{kind} | {cell(' '.join(meaning.split()))} |"
    return f"| `{option.make_metavar(context)}` | argument{'' if option.required else ', optional'} |"


def cli_page() -> str:
    from winch import cli

    lines = [
        "# Command line",
        "",
        NOTICE,
        "",
        "Options that every command takes are listed here once and left out below. They may come before or after the command.",
        "",
        "| option | meaning |",
        "|---|---|",
        *(option_row(one) for one in cli.cli.params if one.name in COMMON),
        "",
        "## Exit codes",
        "",
        "| code | meaning |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in exit_codes(cli.__doc__ or "")),
        "",
    ]
    for name, command in commands():
        depth = "##" if name.count(" ") == 1 else "###"
        lines += [f"{depth} {name}", "", plain(command.help), ""]
        if isinstance(command, click.Group):
            continue
        pieces = command.collect_usage_pieces(click.Context(command, info_name=name))
        lines += ["```text", " ".join([name, *pieces]), "```", ""]
        rows = [
            option_row(one)
            for one in command.params
            if one.name not in COMMON and not getattr(one, "hidden", False)
        ]
        if rows:
            lines += ["| option | meaning |", "|---|---|", *rows, ""]
    return "\n".join(lines).rstrip() + "\n"


def exit_codes(text: str) -> list[tuple[str, str]]:
    listed = " ".join(text.partition("Exit codes:")[2].split()).rstrip(".")
    return re.findall(r"(\d+) (.+?)(?=, \d+ |$)", listed)


# -- settings --------------------------------------------------------------------------------------


def shown_default(name: str, value: Any) -> str:
    if name in SHOWN:
        return SHOWN[name]
    if value is None or value == {}:
        return "–"
    if isinstance(value, timedelta):
        seconds = int(value.total_seconds())
        return f"`{seconds // 3600}h`" if seconds >= 3600 and seconds % 3600 == 0 else f"`{seconds}s`"
    return f"`{value}`"


def settings_table() -> str:
    from winch.engine.base.settings import Settings

    defaults = Settings()
    rows = [
        f"| `{name}` | `WINCH_{name.upper()}` | {shown_default(name, getattr(defaults, name))} | {MEANING[name]} |"
        for name in Settings.__struct_fields__
    ]
    return "\n".join(["| setting | environment | default | meaning |", "|---|---|---|---|", *rows])


BEGIN, END = "<!-- settings: written by make reference -->", "<!-- end of settings -->"


def configuration_page() -> str:
    text = (DOCS / "configuration.md").read_text()
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    return f"{head}{BEGIN}\n{settings_table()}\n{END}{tail}"


# -- HTTP ------------------------------------------------------------------------------------------


def openapi() -> dict[str, Any]:
    import winch
    from winch.web.mount import ROUTES
    from winch.web.openapi import document

    return document(ROUTES, winch.__version__)


def type_of(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return " or ".join(f"`{one}`" for one in schema["enum"])
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return " or ".join(dict.fromkeys(type_of(one) for one in options))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map of {type_of(schema['additionalProperties'])}"
    known = {"string": "text", "null": "null", "any": "any JSON", "object": "object"}
    return str(schema.get("format") or known.get(str(kind), kind))


def field_table(schema: Mapping[str, Any]) -> list[str]:
    required = set(schema.get("required", ()))
    parts: dict[str, Any] = schema.get("properties", {})
    meanings = {
        name: cell(" ".join(str(part.get("description", "")).split())) for name, part in parts.items()
    }
    has_meaning = any(meanings.values())
    lines = ["| field | type | required |" + (" meaning |" if has_meaning else "")]
    lines.append("|---|---|---|" + ("---|" if has_meaning else ""))
    for name, part in parts.items():
        row = f"| `{name}` | {type_of(part)} | {'yes' if name in required else 'no'} |"
        lines.append(f"{row} {meanings[name]} |" if has_meaning else row)
    return [*lines, ""] if parts else []


def http_page() -> str:
    described = openapi()
    schemas: dict[str, Any] = described["components"]["schemas"]
    lines = [
        "# HTTP API",
        "",
        NOTICE,
        "",
        "`winch serve` answers under `/api/v1` and describes itself, as OpenAPI 3.1, at `/api/v1/openapi.json`. "
        "[The dashboard and the HTTP API](../howto/dashboard.md) explains roles, tokens, waiting and paging.",
        "",
        "Programs send `Authorization: Bearer winch_…`. The table of each route names the right that it needs.",
        "",
        "## Routes",
        "",
        "| route | right | what it does |",
        "|---|---|---|",
    ]
    for path, method, operation in operations(described):
        right = operation["x-winch-right"]
        lines.append(
            f"| [`{method} {path}`](#{anchor(method, path)}) | {right} | {operation['summary']} |"
        )
    lines.append("")
    for path, method, operation in operations(described):
        lines += [
            f"### {method} {path} {{ #{anchor(method, path)} }}",
            "",
            f"{operation['summary']}",
            "",
        ]
        parameters = operation.get("parameters", [])
        if parameters:
            lines += ["| parameter | in | type |", "|---|---|---|"]
            for one in parameters:
                lines.append(f"| `{one['name']}` | {one['in']} | {type_of(one['schema'])} |")
            lines.append("")
        body = operation.get("requestBody")
        if body:
            lines += [f"Body: {type_of(body['content']['application/json']['schema'])}.", ""]
        for status, answer in operation["responses"].items():
            if int(status) < 300:
                for media, content in answer.get("content", {}).items():
                    lines.append(f"Returns `{status}` with {type_of(content['schema'])} as `{media}`.")
                if not answer.get("content"):
                    lines.append(f"Returns `{status}`.")
        lines.append("")
    lines += ["## Problems", ""]
    lines += [
        "An error is a problem document (RFC 9457); its `type` is `urn:winch:problem:` and the code.",
        "",
    ]
    lines += ["| code | status | meaning |", "|---|---|---|"]
    from winch.web.problems import PROBLEMS

    lines += [f"| `{code}` | {status} | {title} |" for code, (status, title) in PROBLEMS.items()]
    lines += ["", "## Bodies and answers", ""]
    for name, schema in sorted(schemas.items()):
        lines += [f"### {name}", ""]
        if schema.get("description"):
            lines += [cell(" ".join(schema["description"].split())), ""]
        if "enum" in schema:
            lines += ["One of " + ", ".join(f"`{one}`" for one in schema["enum"]) + ".", ""]
        lines += field_table(schema)
    return "\n".join(lines).rstrip() + "\n"


def operations(described: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def anchor(method: str, path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{method} {path}".lower()).strip("-")


# -- public names ----------------------------------------------------------------------------------


def api_page(name: str) -> str:
    title, opening, names = API[name]
    lines = [f"# {title}", "", NOTICE, "", opening, ""]
    for one in [*names, *whole(name)]:
        lines += directive(one)
    return "\n".join(lines).rstrip() + "\n"


def whole(page: str) -> Sequence[str]:
    """Every name of the module of this page that no other page has."""
    if page not in WHOLE:
        return ()
    taken = {name.rpartition(".")[2] for _, _, names in API.values() for name in names}
    module = importlib.import_module(WHOLE[page])
    return [f"{WHOLE[page]}.{name}" for name in module.__all__ if name not in taken]


def directive(name: str) -> list[str]:
    if name != "winch.App":
        return [f"::: {name}", ""]
    hidden = "|".join(INNER)
    return [f"::: {name}", "    options:", f'      filters: ["!^_", "!^({hidden})$"]', ""]


def index_page() -> str:
    lines = [
        "# Reference",
        "",
        NOTICE,
        "",
        "Every public name, command, setting, route, metric and event.",
        "",
        "| page | holds |",
        "|---|---|",
    ]
    for page, (title, _, names) in API.items():
        listed = ", ".join(f"`{one.rpartition('.')[2]}`" for one in [*names, *whole(page)][:12])
        more = ", …" if len([*names, *whole(page)]) > 12 else ""
        lines.append(f"| [{title}]({page}.md) | {listed}{more} |")
    lines += [
        "| [Command line](cli.md) | every command and option of `winch` |",
        "| [Configuration](../configuration.md) | every setting and environment variable |",
        "| [HTTP API](http.md) | every route, body and problem |",
        "| [Metrics and events](../howto/telemetry.md) | every metric, event and alert |",
    ]
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    made = {
        DOCS / "configuration.md": configuration_page(),
        DOCS / "reference/index.md": index_page(),
        DOCS / "reference/cli.md": cli_page(),
        DOCS / "reference/http.md": http_page(),
    }
    for name in API:
        made[DOCS / f"reference/{name}.md"] = api_page(name)
    return made


def main() -> int:
    differ = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in differ:
            print(f"{path.relative_to(DOCS.parent)} differs: run make reference")
        return 1 if differ else 0
    for path in differ:
        path.write_text(pages()[path])
        print(f"wrote {path.relative_to(DOCS.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
