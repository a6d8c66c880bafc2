"""The description of the API against the API: what it says is what is answered, whatever is sent."""

from __future__ import annotations

import pytest

from tests.web.server import serving
from winch import App
from winch.web.mount import ROUTES

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore")
def test_no_request_breaks_the_server_or_the_description(tmp_path: object) -> None:
    import hypothesis
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    app = App(f"sqlite:///{tmp_path}/winch.db")

    @app.task(name="add")
    def add(a: int) -> int:
        return a

    app.migrate()
    app.enqueue_many([add.bind(n) for n in range(20)])
    with serving(app) as address:
        schema = schemathesis.openapi.from_url(f"{address}/api/v1/openapi.json")
        seen: set[str] = set()
        left_out: set[str] = set()
        for found in schema.get_all_operations():
            operation = found.ok()
            if "events" in operation.path:
                left_out.add(operation.label)
                continue  # endless, by design

            @hypothesis.settings(
                max_examples=25,
                deadline=None,
                database=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            @hypothesis.given(case=operation.as_strategy())
            def check(case: schemathesis.Case) -> None:
                if "claim" in case.path and isinstance(case.body, dict):
                    case.body["wait"] = "0s"
                if "Prefer" in (case.headers or {}):
                    case.headers["Prefer"] = "wait=0"
                case.call_and_validate(
                    checks=[
                        not_a_server_error,
                        status_code_conformance,
                        content_type_conformance,
                        response_schema_conformance,
                    ]
                )

            check()
            seen.add(operation.label)
    described = {f"{route.method} {route.path}" for route in ROUTES if not route.is_page}
    assert seen | left_out == described - {"GET /api/v1/openapi.json"}  # does not describe itself
    assert len(left_out) == 2
