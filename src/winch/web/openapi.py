"""The OpenAPI 3.1 document, made of the table of routes and the types it names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from winch.web.problems import PROBLEMS
from winch.web.routes import PREFIX, WebRoute
from winch.web.schemas.base import Body, ProblemOut
from winch.web.schemas.jobs import NewJobBody, ResultOut
from winch.web.schemas.sessions import FinishBody, NewSessionBody, WorkBody

TAGS: Mapping[str, str] = {
    "jobs": "Enqueue jobs, look at them, act on them.",
    "operations": "Bulk actions that go on after their answer.",
    "sessions": "Work in batches, from any language: one session for a worker's life.",
    "work": "Work job by job, each with a session of its own.",
    "queues": "Queues, their settings, and what to scale workers by.",
    "workers": "Worker sessions and commands to them.",
    "dead": "Dead jobs by what they died of.",
    "flows": "Flows and signals.",
    "schedules": "Schedules.",
    "webhooks": "Endpoints that receive events.",
    "system": "Numbers, events, health, the audit and this description.",
}
_SYSTEM = {"stats", "limits", "events", "audit", "openapi"}
_SAME_TAG = {"signals": "flows", "autoscale": "queues"}
_WORK = ("/claim", "/heartbeat", "/complete", "/fail", "/release")

# name -> (description, schema, example)
_TEXT: Mapping[str, Any] = {"type": "string"}
REQUEST_HEADERS: Mapping[str, tuple[str, Any, str]] = {
    "Idempotency-Key": (
        "The same key of the same caller is the same job: a repeat stores nothing.",
        {"type": "string", "minLength": 1, "maxLength": 256},
        "order-7",
    ),
    "Prefer": (
        "`wait=10` waits so many seconds for the result, 60 at most. The server ignores other wishes.",
        _TEXT,
        "wait=10",
    ),
    "traceparent": (
        "The trace that the job belongs to (W3C). The server ignores a value that it cannot read.",
        _TEXT,
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ),
    "If-None-Match": ("The `ETag` that the client has.", _TEXT, '"4f2a"'),
    "Last-Event-ID": ("The last event that the client has seen.", _TEXT, "17"),
}
RESPONSE_HEADERS: Mapping[str, tuple[str, Any, str]] = {
    "Location": ("Where it is.", {"type": "string", "format": "uri-reference"}, "/api/v1/jobs/0198…"),
    "Link": ('The next page, with `rel="next"`.', _TEXT, '</api/v1/jobs?cursor=x>; rel="next"'),
    "Retry-After": ("Seconds after which to ask again.", {"type": "integer", "minimum": 0}, "1"),
    "ETag": ("Changes with the job.", _TEXT, '"4f2a"'),
    "Preference-Applied": ("What was taken of `Prefer`.", _TEXT, "wait=10"),
    "WWW-Authenticate": ("How to authenticate.", _TEXT, 'Bearer realm="winch"'),
}
_JOBS = f"{PREFIX}/jobs"
# What a route takes and gives beside what the table of routes has.
TAKES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("POST", _JOBS): ("Idempotency-Key", "Prefer", "traceparent"),
    ("POST", f"{_JOBS}:bulk"): ("traceparent",),
    ("GET", f"{_JOBS}/{{id}}"): ("If-None-Match",),
    ("GET", f"{PREFIX}/events"): ("Last-Event-ID",),
}
GIVES: Mapping[tuple[str, str, int], tuple[str, ...]] = {
    ("POST", _JOBS, 202): ("Location", "Preference-Applied"),
    ("POST", _JOBS, 200): ("Location", "Preference-Applied"),
    ("GET", _JOBS, 200): ("Link",),
    ("GET", f"{_JOBS}/{{id}}", 200): ("ETag", "Retry-After"),
    ("GET", f"{_JOBS}/{{id}}", 304): ("ETag",),
    ("GET", f"{_JOBS}/{{id}}/result", 202): ("Retry-After",),
    ("POST", f"{PREFIX}/sessions", 201): ("Location",),
    ("POST", f"{PREFIX}/schedules", 201): ("Location",),
    ("POST", f"{PREFIX}/webhooks", 201): ("Location",),
    **{("POST", f"{_JOBS}:{verb}", 202): ("Location",) for verb in ("cancel", "retry", "delete")},
}
PROBLEM_HEADERS: Mapping[int, tuple[str, ...]] = {
    401: ("WWW-Authenticate",),
    429: ("Retry-After",),
    503: ("Retry-After",),
}
# A second answer that is not the first one's type.
OTHER_ANSWERS: Mapping[tuple[str, str, int], type] = {("POST", _JOBS, 200): ResultOut}
EXAMPLES: Mapping[type, Any] = {
    NewJobBody: {"task": "shop.mail", "args": {"order": 7}, "queue": "mail", "delay": "5m"},
    NewSessionBody: {"worker": "node-1", "queues": ["mail"], "slots": 10, "lease": "30s"},
    WorkBody: {"max": 50, "wait": "20s"},
    FinishBody: {
        "outcomes": [
            {
                "id": "0198c000-0000-7000-8000-000000000001",
                "token": "0f0e5b7c-9a43-4776-9636-822f00000001",
                "outcome": "complete",
                "result": {"sent": True},
            }
        ],
        "claim": {"max": 50},
    },
}

_REF = "#/components/schemas/{name}"
_UUID = ("^[0-9a-fA-F-]{32,36}$", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")
_PARAM = re.compile(r"{(\w+)}")


def document(routes: Sequence[WebRoute], version: str) -> dict[str, Any]:
    """The description of all routes but the dashboard's pages."""
    shown = [route for route in routes if not route.is_page]
    types = list(
        dict.fromkeys(
            kind
            for route in shown
            for kind in (route.query, route.body, route.answer, *OTHER_ANSWERS.values())
            if kind is not None
        )
    )
    schemas, components = msgspec.json.schema_components([*types, ProblemOut], ref_template=_REF)
    _open_maps(components)
    _loosen_bodies(components)
    _mark_ids(components)
    _mark_sizes(components)
    components["ProblemOut"]["properties"]["code"]["enum"] = sorted(PROBLEMS)
    for kind, example in EXAMPLES.items():
        components[kind.__name__]["examples"] = [example]
    refs = dict(zip(types, schemas, strict=False))
    paths: dict[str, Any] = {}
    for route in shown:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, refs, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Winch",
            "version": version,
            "description": "Enqueue jobs, look at them, act on them; work on them from any language.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": dict(_problems()),
            "headers": {
                name: {"description": text, "schema": schema, "example": _example(schema, example)}
                for name, (text, schema, example) in RESPONSE_HEADERS.items()
            },
        },
    }


def _example(schema: Mapping[str, Any], text: str) -> str | int:
    return int(text) if schema["type"] == "integer" else text


def _headers(names: Sequence[str]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _problems() -> Iterator[tuple[str, Any]]:
    """An answer for each status that a problem has."""
    schema = {"$ref": _REF.format(name="ProblemOut")}
    for status in sorted({status for status, _ in PROBLEMS.values()}):
        kinds = {code: title for code, (one, title) in PROBLEMS.items() if one == status}
        words = "; ".join(f"`{code}`: {title[0].lower()}{title[1:]}" for code, title in kinds.items())
        described = {
            "description": f"{words}.",
            "x-problem-types": [f"urn:winch:problem:{code}" for code in kinds],
            "content": {"application/problem+json": {"schema": schema}},
        }
        if status in PROBLEM_HEADERS:
            described["headers"] = _headers(PROBLEM_HEADERS[status])
        yield f"Problem{status}", described


def _mark_ids(components: dict[str, Any]) -> None:
    """Describe what every id, token and key of a claim is."""
    for schema in components.values():
        for name, part in schema.get("properties", {}).items():
            if name in ("id", "token", "key", "claim") and part.get("pattern") in _UUID:
                part["format"] = "uuid"


def _mark_sizes(schema: Any) -> None:
    """Say that an unbounded number may be long: generated clients take 32 bits where nothing is said."""
    for one in schema if isinstance(schema, list) else schema.values():
        if isinstance(one, dict | list):
            _mark_sizes(one)
    if isinstance(schema, dict) and schema.get("type") == "integer" and "maximum" not in schema:
        schema.setdefault("format", "int64")


def _open_maps(schema: Any) -> None:
    """Spell out that a map takes any value. Generated clients read an object without properties as an
    empty one, and then no caller could pass arguments."""
    if isinstance(schema, list):
        for one in schema:
            _open_maps(one)
    elif isinstance(schema, dict):
        for one in schema.values():
            _open_maps(one)
        if schema.get("type") == "object" and not schema.keys() & {"properties", "additionalProperties"}:
            schema["additionalProperties"] = True


def _loosen_bodies(components: dict[str, Any]) -> None:
    """Describe the defaults of what is sent in words. Generated clients demand every field that has a
    `default`, also of the sender."""
    names = {kind.__name__ for kind in _kinds_of(Body)}
    for name in names & components.keys():
        for part in components[name].get("properties", {}).values():
            default = part.pop("default", None)
            if default:
                text = f"{part.get('description', '')} The default is {default}."
                part["description"] = text.strip()


def _kinds_of(kind: type[Body]) -> Iterator[type[Body]]:
    for one in kind.__subclasses__():
        yield one
        yield from _kinds_of(one)


def _operation(route: WebRoute, refs: dict[type, Any], components: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": route.summary,
        "tags": [_tag(route)],
        "operationId": _identity(route),
        "x-winch-right": route.needs,
        "parameters": _parameters(route, refs, components),
        "responses": _responses(route, refs),
    }
    if route.needs == "public":
        described["security"] = []
    if route.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": refs[route.body]}},
        }
    return described


def _identity(route: WebRoute) -> str:
    words = re.sub(r"[^a-z]+", "_", route.path.removeprefix(PREFIX).lower()).strip("_")
    return f"{route.method.lower()}_{words}"


def _tag(route: WebRoute) -> str:
    first = re.split("[/:]", route.path.removeprefix(PREFIX).lstrip("/"))[0].partition(".")[0]
    if route.is_work and route.path.endswith(_WORK) and first in ("jobs", "queues"):
        return "work"
    first = _SAME_TAG.get(first, first)
    return first if first in TAGS and first not in _SYSTEM else "system"


def _parameters(
    route: WebRoute, refs: dict[type, Any], components: dict[str, Any]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAM.findall(route.path)
    ]
    if route.query is not None:
        schema = components[refs[route.query]["$ref"].rpartition("/")[2]]
        for name, part in schema["properties"].items():
            found.append({"name": name, "in": "query", "required": False, "schema": part})
    for name in TAKES.get((route.method, route.path), ()):
        text, header, example = REQUEST_HEADERS[name]
        found.append(
            {
                "name": name,
                "in": "header",
                "required": False,
                "description": text,
                "schema": header,
                "example": example,
            }
        )
    return found


def _responses(route: WebRoute, refs: dict[type, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Done."}
    if route.answer is not None:
        answer["content"] = {route.media: {"schema": refs[route.answer]}}
    elif route.media != "application/json":
        answer["content"] = {route.media: {"schema": {"type": "string"}}}
    found: dict[str, Any] = {str(route.status): answer}
    for status in route.also:
        found[str(status)] = dict(answer) if status < 300 else {"description": "See the headers."}
        other = OTHER_ANSWERS.get((route.method, route.path, status))
        if other is not None:
            found[str(status)]["content"] = {route.media: {"schema": refs[other]}}
    for code, described in found.items():
        if names := GIVES.get((route.method, route.path, int(code))):
            described["headers"] = _headers(names)
    for status in sorted({one for one, _ in PROBLEMS.values()}):
        found.setdefault(str(status), {"$ref": f"#/components/responses/Problem{status}"})
    return found
