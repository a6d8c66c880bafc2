"""Which route takes a path: names with slashes, methods that no path knows, and the header `Allow`."""

from __future__ import annotations

from tests.web.kit import Web


def test_allow_names_every_method_of_the_path(web: Web) -> None:
    for path, methods in (
        ("/api/v1/jobs", "GET, HEAD, POST"),
        ("/api/v1/queues/mail", "GET, HEAD, PATCH"),
        ("/api/v1/queues/mail/purge", "POST"),
        ("/api/v1/limits/a%2Fb", "DELETE, PUT"),
    ):
        answer = web.ask("OPTIONS", path)
        assert answer.status_code == 405, path
        assert answer.headers["allow"] == methods, path


def test_a_method_that_only_a_shorter_path_has_is_not_allowed(web: Web) -> None:
    """PATCH of queue `mail/purge` is meant only where the slash is a part of the name."""
    assert web.ask("PATCH", "/api/v1/queues/mail/purge", {"retries": 1}).status_code == 405
    changed = web.ask("PATCH", "/api/v1/queues/mail%2Fpurge", {"retries": 1})
    assert changed.status_code == 200
    assert changed.json()["queue"] == "mail/purge"
    assert web.ask("PATCH", "/api/v1/queues/mail/urgent", {"retries": 1}).status_code == 200


def test_an_empty_number_in_a_query_is_refused(web: Web) -> None:
    answer = web.ask("GET", "/api/v1/jobs?limit=")
    assert answer.status_code == 422
    assert "limit" in answer.json()["detail"]
    assert web.ask("GET", "/api/v1/jobs?queue=&state=").status_code == 200
