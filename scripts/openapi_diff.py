"""Hold the description of the HTTP API against its frozen copy, tests/golden/openapi.json.

    python scripts/openapi_diff.py            fail where the two differ, and name what breaks clients
    python scripts/openapi_diff.py --write    freeze the description; refused where that breaks clients
    python scripts/openapi_diff.py --write --breaking    freeze it all the same: for a new major version

What breaks a client: a path, method, parameter, field, status, header or enum value that is gone; a new
field or parameter that it must send; another type; a narrower bound of what it sends; another meaning of
what it leaves out; a right that it did not need.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "openapi.json"
METHODS = ("get", "post", "put", "patch", "delete")
# A bound of what is sent: -1 where less is narrower.
BOUNDS = {"maxLength": -1, "maximum": -1, "maxItems": -1, "minLength": 1, "minimum": 1, "minItems": 1}

Json = Mapping[str, Any]


def breaks(old: Json, new: Json) -> list[str]:
    """What a client of the old description can no longer rely on."""
    return list(Diff(old, new).all())


class Diff:
    """Two descriptions."""

    def __init__(self, old: Json, new: Json) -> None:
        self._old, self._new = old, new
        self._seen: set[tuple[str, str, bool]] = set()

    def all(self) -> Iterator[str]:
        for path, methods in self._old["paths"].items():
            for method in METHODS:
                if method in methods:
                    where = f"{method.upper()} {path}"
                    now = self._new["paths"].get(path, {}).get(method)
                    if now is None:
                        yield f"{where}: is gone"
                    else:
                        yield from self._operation(methods[method], now, where)

    def _operation(self, old: Json, new: Json, where: str) -> Iterator[str]:
        for name in ("operationId", "x-winch-right"):
            if old.get(name) != new.get(name):
                yield f"{where}: {name} was {old.get(name)!r}, is {new.get(name)!r}"
        yield from self._parameters(old, new, where)
        before, now = _media(old.get("requestBody")), _media(new.get("requestBody"))
        if old.get("requestBody") is None and now:
            yield f"{where}: needs a body"
        for media, schema in before.items():
            if media not in now:
                yield f"{where}: takes no body of {media}"
            else:
                yield from self._schema(schema, now[media], f"{where} body", is_sent=True)
        for status, answer in old["responses"].items():
            if status not in new["responses"]:
                yield f"{where}: status {status} is gone"
                continue
            mine, theirs = (
                self._found(self._old, answer),
                self._found(self._new, new["responses"][status]),
            )
            for header in mine.get("headers", {}):
                if header not in theirs.get("headers", {}):
                    yield f"{where} {status}: header {header} is gone"
            for media, schema in _media(mine).items():
                if media not in _media(theirs):
                    yield f"{where} {status}: no answer of {media}"
                else:
                    now_schema = _media(theirs)[media]
                    yield from self._schema(schema, now_schema, f"{where} {status}", is_sent=False)

    def _parameters(self, old: Json, new: Json, where: str) -> Iterator[str]:
        before, now = _by_name(old), _by_name(new)
        for key, parameter in before.items():
            if key not in now:
                yield f"{where}: {key[0]} parameter {key[1]} is gone"
            else:
                place = f"{where} {key[0]} parameter {key[1]}"
                yield from self._schema(parameter["schema"], now[key]["schema"], place, is_sent=True)
        for key, parameter in now.items():
            was_needed = key in before and before[key].get("required")
            if parameter.get("required") and not was_needed:
                yield f"{where}: {key[0]} parameter {key[1]} is required"

    # -- schemas -----------------------------------------------------------------------------------

    def _schema(self, old: Json, new: Json, where: str, *, is_sent: bool) -> Iterator[str]:
        pair = (old.get("$ref", ""), new.get("$ref", ""), is_sent)
        if pair[0] and pair[1]:
            if pair in self._seen:
                return
            self._seen.add(pair)
        before, now = _variants(self._found(self._old, old)), _variants(self._found(self._new, new))
        known = {self._kind(self._new, one): one for one in now}
        mine = {self._kind(self._old, one): one for one in before}
        if "any" in (known if is_sent else mine):
            return
        for kind, one in mine.items():
            if kind in known:
                yield from self._same_kind(one, known[kind], where, is_sent)
            elif is_sent:
                yield f"{where}: takes no {kind} any more"
        for kind in known.keys() - mine.keys():
            if not is_sent:
                yield f"{where}: may be {kind} now"

    def _same_kind(self, old: Json, new: Json, where: str, is_sent: bool) -> Iterator[str]:
        old, new = self._found(self._old, old), self._found(self._new, new)
        if "properties" in old or "properties" in new:
            yield from self._object(old, new, where, is_sent)
        if isinstance(old.get("items"), Mapping) and isinstance(new.get("items"), Mapping):
            yield from self._schema(old["items"], new["items"], f"{where}[]", is_sent=is_sent)
        values, others = old.get("additionalProperties"), new.get("additionalProperties")
        if isinstance(values, Mapping) and isinstance(others, Mapping):
            yield from self._schema(values, others, f"{where}{{}}", is_sent=is_sent)
        gone = [value for value in old.get("enum", ()) if value not in new.get("enum", (value,))]
        if gone or ("enum" in new and "enum" not in old and is_sent):
            yield f"{where}: takes no {', '.join(map(str, gone)) or 'other value'} any more"
        if old.get("format") != new.get("format"):
            yield f"{where}: format was {old.get('format')}, is {new.get('format')}"
        if is_sent:
            if values is not False and others is False:
                yield f"{where}: takes no unknown field any more"
            yield from _narrower(old, new, where)

    def _object(self, old: Json, new: Json, where: str, is_sent: bool) -> Iterator[str]:
        before, now = old.get("properties", {}), new.get("properties", {})
        required, needed = set(old.get("required", ())), set(new.get("required", ()))
        for name, schema in before.items():
            if name not in now:
                yield f"{where}.{name}: is gone"
                continue
            yield from self._schema(schema, now[name], f"{where}.{name}", is_sent=is_sent)
            default, other = schema.get("default"), now[name].get("default")
            if is_sent and default != other:
                yield f"{where}.{name}: means {other!r} where it is left out, meant {default!r}"
        if is_sent:
            for name in sorted(needed - required):
                yield f"{where}.{name}: is required"
        else:
            for name in sorted((required - needed) & now.keys()):
                yield f"{where}.{name}: may be missing now"

    def _kind(self, document: Json, schema: Json) -> str:
        """What identifies a variant of a schema: the tag of a tagged object, else the JSON type."""
        schema = self._found(document, schema)
        for name, part in schema.get("properties", {}).items():
            values = part.get("enum", [part["const"]] if "const" in part else [])
            if len(values) == 1 and name in schema.get("required", ()):
                return f"object with {name}={values[0]}"
        if "type" in schema:
            return str(schema["type"])
        if "enum" in schema:
            return {str: "string", int: "integer", type(None): "null"}.get(
                type(schema["enum"][0]), "value"
            )
        return "any"

    @staticmethod
    def _found(document: Json, schema: Json) -> Json:
        while "$ref" in schema:
            found: Any = document
            for part in schema["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            schema = found
        return schema


def _variants(schema: Json) -> list[Json]:
    return list(schema.get("anyOf", schema.get("oneOf", [schema])))


def _media(part: Json | None) -> dict[str, Json]:
    content = {} if part is None else part.get("content", {})
    return {media: one.get("schema", {}) for media, one in content.items()}


def _by_name(operation: Json) -> dict[tuple[str, str], Json]:
    return {(one["in"], one["name"]): one for one in operation.get("parameters", ())}


def _narrower(old: Json, new: Json, where: str) -> Iterator[str]:
    for name, sign in BOUNDS.items():
        if name in new and (name not in old or (new[name] - old[name]) * sign > 0):
            yield f"{where}: {name} was {old.get(name, 'free')}, is {new[name]}"
    if new.get("pattern") not in (None, old.get("pattern")):
        yield f"{where}: pattern was {old.get('pattern', 'free')}, is {new['pattern']}"


def written(document: Json) -> str:
    """The description as it is frozen: without the version of the package."""
    frozen = {**document, "info": {**document["info"], "version": "frozen"}}
    return json.dumps(frozen, indent=1, sort_keys=True) + "\n"


def main(argv: list[str]) -> int:
    from winch.web.mount import ROUTES
    from winch.web.openapi import document

    now = written(document(ROUTES, ""))
    before = GOLDEN.read_text() if GOLDEN.exists() else None
    broken = [] if before is None else breaks(json.loads(before), json.loads(now))
    for line in broken:
        print(f"breaks clients: {line}", file=sys.stderr)
    if "--write" in argv and ("--breaking" in argv or not broken):
        GOLDEN.write_text(now)
        return 0
    if broken:
        return 1
    if before != now:
        print(
            "the description of the API has changed, and breaks no client: "
            "freeze it with python scripts/openapi_diff.py --write",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
