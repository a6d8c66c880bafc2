"""The OpenAPI 3.1 document, made of the table of routes and the types it names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from winch.web import schemas as api_types
from winch.web.problems import PROBLEMS
from winch.web.routes import PREFIX, WebRoute
from winch.web.schemas import Body, ProblemOut

_REF = "#/components/schemas/{name}"
_PARAM = re.compile(r"{(\w+)}")


def document(routes: Sequence[WebRoute], version: str) -> dict[str, Any]:
    """The description of all routes but the dashboard's pages."""
    shown = [route for route in routes if not route.is_page]
    types = list(
        dict.fromkeys(
            kind
            for route in shown
            for kind in (route.query, route.body, route.answer)
            if kind is not None
        )
    )
    schemas, components = msgspec.json.schema_components([*types, ProblemOut], ref_template=_REF)
    _open_maps(components)
    _loosen_bodies(components)
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
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "What went wrong (RFC 9457).",
                    "content": {
                        "application/problem+json": {"schema": {"$ref": _REF.format(name="ProblemOut")}}
                    },
                }
            },
        },
    }


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
    names = {
        kind.__name__
        for kind in vars(api_types).values()
        if isinstance(kind, type) and issubclass(kind, Body)
    }
    for name in names & components.keys():
        for part in components[name].get("properties", {}).values():
            default = part.pop("default", None)
            if default:
                text = f"{part.get('description', '')} The default is {default}."
                part["description"] = text.strip()


def _operation(route: WebRoute, refs: dict[type, Any], components: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": route.summary,
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
    for status in sorted({status for status, _ in PROBLEMS.values()}):
        found.setdefault(str(status), {"$ref": "#/components/responses/Problem"})
    return found
