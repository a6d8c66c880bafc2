"""A change of the HTTP API that breaks clients is found; any other one only has to be frozen."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts import openapi_diff
from scripts.openapi_diff import GOLDEN, breaks, main

Document = dict[str, Any]
FROZEN: Document = json.loads(GOLDEN.read_text())
JOBS = "/api/v1/jobs"


def schemas(document: Document, name: str) -> Document:
    found: Document = document["components"]["schemas"][name]
    return found


def no_path(new: Document) -> None:
    del new["paths"][f"{JOBS}:bulk"]


def no_method(new: Document) -> None:
    del new["paths"][JOBS]["get"]


def no_field_sent(new: Document) -> None:
    del schemas(new, "NewJobBody")["properties"]["delay"]


def no_field_answered(new: Document) -> None:
    del schemas(new, "JobDetail")["properties"]["progress"]


def needs_a_field(new: Document) -> None:
    schemas(new, "ClaimBody").setdefault("required", []).append("worker")


def may_leave_out(new: Document) -> None:
    schemas(new, "SessionOut")["required"].remove("key")


def no_enum_value(new: Document) -> None:
    schemas(new, "FinishAnswer")["properties"]["answer"]["enum"].remove("already")


def no_state(new: Document) -> None:
    schemas(new, "JobState")["enum"].remove("dead")


def other_type_sent(new: Document) -> None:
    schemas(new, "WorkBody")["properties"]["max"]["type"] = "string"


def other_type_answered(new: Document) -> None:
    schemas(new, "SessionOut")["properties"]["lease_seconds"] = {"type": "string"}


def null_answered(new: Document) -> None:
    part = schemas(new, "SessionOut")["properties"]
    part["id"] = {"anyOf": [part["id"], {"type": "null"}]}


def no_outcome(new: Document) -> None:
    variants = schemas(new, "FinishBody")["properties"]["outcomes"]["items"]["anyOf"]
    del variants[0]


def narrower(new: Document) -> None:
    schemas(new, "FinishBody")["properties"]["outcomes"]["maxItems"] = 100


def no_status(new: Document) -> None:
    del new["paths"][JOBS]["post"]["responses"]["200"]


def no_header(new: Document) -> None:
    del new["paths"][JOBS]["post"]["responses"]["202"]["headers"]["Location"]


def needs_a_parameter(new: Document) -> None:
    parameter = {"name": "x", "in": "query", "required": True, "schema": {"type": "string"}}
    new["paths"][JOBS]["get"]["parameters"].append(parameter)


def no_parameter(new: Document) -> None:
    found = new["paths"][JOBS]["post"]["parameters"]
    found[:] = [one for one in found if one["name"] != "Idempotency-Key"]


def other_default(new: Document) -> None:
    schemas(new, "NewSessionBody")["properties"]["slots"]["default"] = 10


def no_unknown_field(new: Document) -> None:
    schemas(new, "NewSessionBody")["properties"]["labels"]["additionalProperties"] = False


def other_right(new: Document) -> None:
    new["paths"][JOBS]["post"]["x-winch-right"] = "admin"


@pytest.mark.parametrize(
    "change",
    [no_path, no_method, no_field_sent, no_field_answered, needs_a_field, may_leave_out, no_enum_value,
     no_state, other_type_sent, other_type_answered, null_answered, no_outcome, narrower, no_status,
     no_header, needs_a_parameter, no_parameter, other_default, no_unknown_field, other_right],
)  # fmt: skip
def test_changes_that_break_a_client_are_found(change: Callable[[Document], None]) -> None:
    new = copy.deepcopy(FROZEN)
    change(new)
    assert breaks(FROZEN, new) != []
    assert breaks(FROZEN, FROZEN) == []


def more(new: Document) -> None:
    schemas(new, "NewJobBody")["properties"]["new"] = {"type": "string"}
    schemas(new, "JobDetail")["properties"]["new"] = {"type": "string"}
    schemas(new, "JobDetail")["required"].append("new")
    schemas(new, "FinishBody")["properties"]["outcomes"]["maxItems"] = 1000
    new["paths"]["/api/v1/new"] = {"get": {"responses": {}}}
    parameter = {"name": "x", "in": "query", "required": False, "schema": {"type": "string"}}
    new["paths"][JOBS]["get"]["parameters"].append(parameter)


def test_additions_break_no_client() -> None:
    new = copy.deepcopy(FROZEN)
    more(new)
    assert breaks(FROZEN, new) == []
    assert len(breaks(new, FROZEN)) > 3  # the other way it is taken away


def test_the_script_fails_for_a_break_and_freezes_what_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen = tmp_path / "openapi.json"
    monkeypatch.setattr(openapi_diff, "GOLDEN", frozen)
    before = copy.deepcopy(FROZEN)
    before["paths"][JOBS]["trace"] = {}  # no client has it
    frozen.write_text(json.dumps(before))
    assert main([]) == 1
    assert "breaks no client" in capsys.readouterr().err
    assert main(["--write"]) == 0
    assert main([]) == 0
    before["paths"]["/api/v1/gone"] = {"get": {"responses": {}}}
    frozen.write_text(json.dumps(before))
    for argv in ([], ["--write"]):
        assert main(argv) == 1
        assert "breaks clients: GET /api/v1/gone: is gone" in capsys.readouterr().err
    assert main(["--write", "--breaking"]) == 0
    assert main([]) == 0
