"""Access control: every route with every role, scopes, tokens, sessions, other sites, other hosts."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.web.kit import OWN, Web
from winch.core.lifecycle import JobState
from winch.core.values.ip_address import is_loopback
from winch.storage.verbs import Verb
from winch.web.access import ROLES, Access
from winch.web.mount import ROUTES, asgi
from winch.web.security_headers import CSP
from winch.web.tokens import Tokens

NOBODYS = "0198c000-0000-7000-8000-00000000dead"


def filled(path: str) -> str:
    return path.replace("{id}", NOBODYS).replace("{queue}", "default").replace("{name}", "x")


def test_every_route_has_a_right_and_every_change_a_word_for_the_audit() -> None:
    rights = {"public", *ROLES["admin"]}
    for route in ROUTES:
        assert route.needs in rights, route.path
        if route.changes and not route.is_work and route.needs != "public":
            assert route.audit, f"{route.method} {route.path} changes something and leaves no trace"
        if not route.changes:
            assert route.audit is None


def test_every_route_with_every_role(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite", auth="tokens")
    tokens = {role: web.token(role) for role in ROLES}
    for route in ROUTES:
        path = filled(route.path)
        for role in (None, *ROLES):
            if route.media == "text/event-stream" and "{id}" not in route.path:
                continue  # it would stream; test_live.py reads it
            body: Any = None
            more: dict[str, Any] = {}
            if route.is_page and route.changes:
                more = {"data": {"x": "y"}, "headers": OWN}
            elif route.is_page:
                more = {"headers": {"accept": "text/html"}}
            elif route.body is not None:
                body = {}
            answer = web.ask(
                route.method, path, body, token=None if role is None else tokens[role], **more
            )
            code = answer.status_code
            where = f"{role}: {route.method} {path} {code}"
            if route.needs == "public":
                assert code != 401, where
                assert code != 403 or answer.json()["code"] == "cross-site", where
            elif role is None:
                assert code == (303 if route.is_page and not route.changes else 401), where
                if code == 303:
                    assert "/login" in answer.headers["location"]
            elif route.needs in ROLES[role]:
                assert code not in (401, 405, 500), where
                assert code != 403 or answer.json()["code"] == "cross-site", where
            else:
                assert code == 403, where


def test_a_closed_site_refuses_everyone(make_web: Callable[..., Web]) -> None:
    web = make_web()
    web.asgi = asgi(web.app)
    for route in ROUTES:
        if route.needs != "public":
            answer = web.ask(route.method, filled(route.path), {} if route.changes else None)
            assert answer.status_code == 403, route.path
    assert web.ask("GET", "/livez").status_code == 200


def test_the_host_application_controls_access(make_web: Callable[..., Web]) -> None:
    def access_by_header(request: Any) -> Access | None:
        name = request.headers.get("x-user")
        return Access(name, roles=("operate" if name == "ada" else "read",)) if name else None

    async def later(request: Any) -> Access | None:
        await asyncio.sleep(0)
        return access_by_header(request)

    web = make_web()
    job = web.add.enqueue(1)
    for authenticate in (access_by_header, later):
        web.asgi = asgi(web.app, authenticate=authenticate)
        assert web.api("GET", "/jobs").status_code == 401
        assert web.api("GET", "/jobs", headers={"x-user": "bob"}).status_code == 200
        refused = web.api("POST", f"/jobs/{job.id}/retry", {}, headers={"x-user": "bob"})
        assert refused.status_code == 403
        allowed = web.api("POST", f"/jobs/{job.id}/cancel", {}, headers={"x-user": "ada"})
        assert allowed.status_code in (200, 409)
    assert job.refresh().record.state is JobState.CANCELLED


# -- tokens ------------------------------------------------------------------------------------------


def test_a_token_is_not_in_the_store(make_web: Callable[..., Web], tmp_path: Any) -> None:
    web = make_web("sqlite", auth="tokens")
    token = web.token("admin")
    web.app.close()
    secret = token.rpartition("_")[2].encode()
    for file in tmp_path.rglob("winch.db*"):
        assert secret not in file.read_bytes()
        assert token.encode() not in file.read_bytes()


def test_a_revoked_token_is_refused_within_a_second(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite", auth="tokens")
    token = web.token("read")
    assert web.api("GET", "/jobs", token=token).status_code == 200
    tokens = Tokens(web.app.ready())
    [kept] = web.app.client.run(tokens.list())
    assert kept.used_at is not None
    assert web.app.client.run(tokens.revoke(kept.id))
    deadline = time.monotonic() + 1.0
    while web.api("GET", "/jobs", token=token).status_code != 401:
        assert time.monotonic() < deadline + 5  # the machine may be slow; the cache is half a second


@pytest.mark.parametrize("answers", range(1, 3))
def test_a_token_that_is_revoked_while_it_is_recognised_stays_revoked(
    make_web: Callable[..., Web], answers: int
) -> None:
    """The revocation comes after so many answers of the store to the request that uses the token."""
    web = make_web("memory", auth="tokens")
    driver = web.app.ready()
    tokens = Tokens(driver)
    text, kept = web.app.client.run(tokens.create("t", ("read",)))
    asking = tokens.recognise(text)
    verb, found = next(asking), None
    try:
        for number in itertools.count(1):
            assert isinstance(verb, Verb)
            answer = driver.run(verb)
            if number == answers:
                assert web.app.client.run(tokens.revoke(kept.id))
            verb = asking.send(answer)
    except StopIteration as end:
        found = end.value
    assert found is None
    assert web.app.client.run(tokens.recognise(text)) is None
    assert web.app.client.run(tokens.list()) == []


def test_an_expired_token_is_refused(make_web: Callable[..., Web]) -> None:
    web = make_web("memory", auth="tokens")
    assert web.api("GET", "/jobs", token=web.token("read", expires=timedelta(0))).status_code == 401
    assert web.api("GET", "/jobs", token=web.token("read", expires=timedelta(1))).status_code == 200


@pytest.mark.parametrize(
    "token", ["", "x", "winch_", "winch_000000000000_x", "winch_" + "é" * 12 + "_x"]
)
def test_a_wrong_token_is_refused(make_web: Callable[..., Web], token: str) -> None:
    web = make_web("memory", auth="tokens")
    headers = {"authorization": f"Bearer {token}".encode()}
    answer = web.api("GET", "/jobs", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_guessing_is_slowed_down_per_source(
    make_web: Callable[..., Web], caplog: pytest.LogCaptureFixture
) -> None:
    web = make_web("memory", auth="tokens")
    guess = "winch_000000000000_GUESSED"
    codes = [web.api("GET", "/jobs", token=guess).status_code for _ in range(50)]
    assert codes[0] == 401
    assert codes[-1] == 429
    assert "GUESSED" not in caplog.text


# -- scopes ------------------------------------------------------------------------------------------


def test_a_token_for_some_queues_sees_nothing_else(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite", auth="tokens")
    mine, other = web.mail.enqueue("ada"), web.add.enqueue(1)
    token = web.token("operate", "work", queues=("mail",))
    assert [job["id"] for job in web.api("GET", "/jobs", token=token).json()["jobs"]] == [mine.id]
    for method, path in (("GET", ""), ("GET", "/why"), ("POST", "/cancel"), ("DELETE", "")):
        body: dict[str, Any] | None = {} if method == "POST" else None
        assert web.api(method, f"/jobs/{other.id}{path}", body, token=token).status_code == 404
    assert other.refresh().state is JobState.READY
    assert [q["name"] for q in web.api("GET", "/queues", token=token).json()["queues"]] == ["mail"]
    assert web.api("POST", "/queues/default/pause", {}, token=token).status_code == 404
    assert web.api("POST", "/queues/default/claim", {}, token=token).status_code == 404
    assert len(web.claim("mail", token=token)) == 1
    assert (
        web.api("POST", "/jobs", {"task": "shop.add", "args": {"a": 1}}, token=token).status_code == 403
    )
    bulk = web.api("POST", "/jobs:cancel", {"all": True}, token=token)
    assert bulk.status_code == 202
    assert other.refresh().state is JobState.READY
    assert web.api("GET", "/stats", token=token).status_code == 403


def test_a_token_for_some_tasks_enqueues_nothing_else(make_web: Callable[..., Web]) -> None:
    web = make_web("memory", auth="tokens")
    token = web.token("enqueue", tasks=("shop.add",))
    assert (
        web.api("POST", "/jobs", {"task": "shop.add", "args": {"a": 1}}, token=token).status_code == 202
    )
    refused = web.api("POST", "/jobs", {"task": "shop.mail", "args": {"to": "x"}}, token=token)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def test_a_token_for_some_tasks_reaches_no_job_of_another(make_web: Callable[..., Web]) -> None:
    web = make_web("memory", auth="tokens")
    mine, other = web.add.enqueue(1), web.mail.enqueue("ada")
    token = web.token("operate", "work", tasks=("shop.add",))
    assert [job["id"] for job in web.api("GET", "/jobs", token=token).json()["jobs"]] == [mine.id]
    assert web.api("POST", f"/jobs/{other.id}/cancel", {}, token=token).status_code == 404
    assert web.api("POST", "/jobs:delete", {"all": True}, token=token).json()["matched"] == 1
    assert other.refresh().state is JobState.READY
    assert web.claim("mail", token=token) == []


def test_a_narrowed_producer_learns_nothing_of_the_job_that_holds_its_id_or_key(
    make_web: Callable[..., Web],
) -> None:
    web = make_web("memory", auth="tokens")
    token = web.token("operate", queues=("default",))
    held = web.mail.using(unique="the-one").enqueue("SECRET")
    for given in ({"id": held.id}, {"unique": "the-one"}):
        body = {"task": "shop.add", "args": {"a": 1}, **given}
        for path, sent in (("/jobs", body), ("/jobs:bulk", {"jobs": [body]})):
            answer = web.api("POST", path, sent, token=token)
            if answer.status_code == 202:  # a unique key of another task is another key
                assert "unique" in given
            else:
                assert (answer.status_code, answer.json()["code"]) == (409, "duplicate")
            assert held.id not in answer.text
            assert "SECRET" not in answer.text


@pytest.mark.parametrize("name", ["winch-inputs", "winch-awaited", "winch-flow", "winch-request"])
def test_a_producer_sets_no_header_of_winch_itself(make_web: Callable[..., Web], name: str) -> None:
    """These headers make a job a member of a flow, which takes the results of other members: those of
    another tenant, too."""
    web = make_web("memory", auth="tokens")
    token = web.token("operate", tenant="bolt")
    body = {"task": "shop.add", "args": {"a": 1}, "headers": {name: "{}"}}
    for path, sent in (("/jobs", body), ("/jobs:bulk", {"jobs": [body]})):
        answer = web.api("POST", path, sent, token=token)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
        assert f"header '{name}'" in answer.json()["detail"]
    assert web.api("GET", "/jobs", token=token).json()["jobs"] == []


def test_a_narrowed_caller_reads_neither_the_id_nor_the_number_of_other_jobs(
    make_web: Callable[..., Web],
) -> None:
    web = make_web("memory", auth="tokens")
    web.serve("default", tasks=("shop.add", "shop.mail"))
    first = web.mail.using(queue="default", fifo="line").enqueue("ada")
    web.mail.using(queue="default").enqueue("bob")
    behind = web.add.using(fifo="line").enqueue(1)
    admin = web.token("admin")
    [held] = web.claim(token=admin)
    assert held["id"] == first.id
    assert web.claim(token=admin, tasks=["shop.add"]) == []
    waiting = web.add.enqueue(2)
    token = web.token("read", tasks=("shop.add",))
    reasons = [
        web.api("GET", f"/jobs/{job.id}/why", token=token).json()["why"] for job in (behind, waiting)
    ]
    for why in reasons:
        assert first.id not in why
    assert "another job goes first" in reasons[0]
    assert "other jobs of queue 'default' go first" in reasons[1]


def _make_token(web: Web, token: str, **fields: str) -> httpx.Response:
    headers = {"accept": "text/html", "authorization": f"Bearer {token}"}
    page = web.ask("GET", "/settings", headers=headers)
    found = re.search(r'name="form_token" value="([^"]+)"', page.text)
    assert found is not None, page.text
    form = {"form_token": found[1], "name": "made", "role": "admin", **fields}
    return web.ask("POST", "/settings/tokens", headers={**headers, **OWN}, data=form)


@pytest.mark.parametrize(
    "scope, wider",
    [
        ({"tenant": "acme"}, {"tenant": "bolt"}),
        ({"queues": ("mail",)}, {"queues": "mail, default"}),
        ({"tasks": ("shop.mail",)}, {"tasks": "shop.add"}),
    ],
)
def test_a_narrowed_token_makes_none_that_is_wider(
    make_web: Callable[..., Web], scope: dict[str, Any], wider: dict[str, str]
) -> None:
    web = make_web("memory", auth="tokens")
    token = web.token("admin", **scope)
    assert _make_token(web, token, **wider).status_code == 403
    assert _make_token(web, token).status_code == 200
    made = [one for one in web.app.client.run(Tokens(web.app.ready()).list()) if one.name == "made"]
    assert [{name: getattr(one, name) for name in scope} for one in made] == [scope]


def test_a_token_makes_none_that_outlives_it(make_web: Callable[..., Web]) -> None:
    web = make_web("memory", auth="tokens")
    token = web.token("admin", expires=timedelta(hours=1))
    assert _make_token(web, token, expires="2h").status_code == 403
    assert _make_token(web, token).status_code == 200
    assert _make_token(web, token, expires="1m").status_code == 200
    kept = web.app.client.run(Tokens(web.app.ready()).list())
    ends = [one.expires_at for one in kept]
    assert all(end is not None and ends[0] is not None and end <= ends[0] for end in ends)


def test_a_narrowed_token_reads_its_own_audit_lines(make_web: Callable[..., Web]) -> None:
    web = make_web("memory", auth="tokens")
    narrow, other = web.token("admin", queues=("mail",)), web.token("admin")
    for token, reason in ((narrow, "mine"), (other, "theirs")):  # both tokens have the same name
        web.api("POST", "/queues/mail/pause", {"reason": reason}, token=token)
    lines = web.api("GET", "/audit", token=narrow).json()["lines"]
    assert [line["detail"]["reason"] for line in lines] == ["mine"]
    assert len(web.api("GET", "/audit", token=other).json()["lines"]) == 2
    page = web.ask("GET", "/audit", token=narrow, headers={"accept": "text/html"})
    assert "mine" in page.text
    assert "theirs" not in page.text


def test_tenants_do_not_meet(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite", auth="tokens")
    a, b = (web.token("operate", tenant=name) for name in ("acme", "bolt"))
    body = {"task": "shop.add", "args": {"a": 1}, "unique": "the-one"}
    mine = web.api("POST", "/jobs", body, token=a).json()
    theirs = web.api("POST", "/jobs", body, token=b).json()
    assert mine["id"] != theirs["id"], "a unique key of one tenant does not block another"
    assert (mine["tenant"], theirs["tenant"]) == ("acme", "bolt")
    assert web.api("POST", "/jobs", {**body, "tenant": "bolt"}, token=a).status_code == 403
    assert [job["id"] for job in web.api("GET", "/jobs", token=b).json()["jobs"]] == [theirs["id"]]
    for route in ROUTES:
        is_about_a_job = "{id}" in route.path and "/jobs/" in route.path and not route.is_page
        if is_about_a_job and route.needs in ROLES["operate"]:
            path = route.path.replace("{id}", mine["id"])
            answer = web.ask(route.method, path, {} if route.body else None, token=b)
            assert answer.status_code == 404, f"{route.method} {path}"
    for path in ("/stats", "/queues", "/workers", "/dead/groups", "/events", "/schedules", "/limits"):
        assert web.api("GET", path, token=b).status_code == 403
    line = {"task": "shop.add", "args": {"a": 2}, "fifo": "line"}
    first = web.api("POST", "/jobs", {**line, "delay": "1h"}, token=a).json()
    second, behind = (web.api("POST", "/jobs", line, token=token).json() for token in (b, a))
    ready = {job["id"] for job in web.claim(max=10, token=web.token("work"))}
    assert second["id"] in ready, "a FIFO key of one tenant does not hold another"
    assert not {first["id"], behind["id"]} & ready


def test_a_claim_belongs_to_the_credential_that_made_it(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite", auth="tokens")
    first, second = web.token("work"), web.token("work")
    web.add.enqueue(1)
    [job] = web.claim(token=first)
    for verb in ("complete", "fail", "heartbeat"):
        stolen = web.api("POST", f"/jobs/{job['id']}/{verb}", {"token": job["token"]}, token=second)
        assert stolen.status_code == 403
    done = web.api("POST", f"/jobs/{job['id']}/complete", {"token": job["token"]}, token=first)
    assert done.status_code == 200


# -- the door ----------------------------------------------------------------------------------------


def test_other_hosts_are_not_answered(make_web: Callable[..., Web]) -> None:
    web = make_web()
    for host in ("evil.test", "evil.test:8090", "localhost.evil.test", ""):
        assert web.ask("GET", "/api/v1/jobs", headers={"host": host}).status_code == 421
    for host in ("localhost", "localhost:8090", "LOCALHOST"):
        assert web.ask("GET", "/api/v1/jobs", headers={"host": host}).status_code == 200


def test_every_answer_has_the_headers(make_web: Callable[..., Web]) -> None:
    web = make_web("memory", auth="tokens")
    for path in ("/api/v1/jobs", "/nowhere", "/livez", "/api/v1/openapi.json", "/static/nothing.js"):
        for host in ("localhost", "evil.test"):
            headers = web.ask("GET", path, headers={"host": host}).headers
            assert headers["content-security-policy"] == CSP
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["x-request-id"]
            assert "access-control-allow-origin" not in headers
    assert "unsafe" not in CSP


def test_a_large_body_is_refused_before_it_is_read(make_web: Callable[..., Web]) -> None:
    web = make_web()
    reads = 0

    async def go() -> int:
        sent: list[Any] = []

        async def receive() -> Any:
            nonlocal reads
            reads += 1
            return {"type": "http.request", "body": b"x" * 65536, "more_body": True}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/v1/jobs",
            "raw_path": b"",
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [
                (b"host", b"localhost"),
                (b"content-length", b"104857600"),
                (b"content-type", b"application/json"),
            ],
        }
        await web.asgi(scope, receive, send)
        first: int = sent[0]["status"]
        scope["headers"] = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        sent.clear()
        await web.asgi(scope, receive, send)
        assert sent[0]["status"] == 413, "a body without a length, too"
        return first

    assert web._runner.run(go()) == 413
    assert reads <= 8 * 1024 * 1024 // 65536 + 1


def test_a_failure_shows_the_client_only_an_id(
    make_web: Callable[..., Web], monkeypatch: pytest.MonkeyPatch
) -> None:
    web = make_web("sqlite")
    driver = web.app.ready()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("CANARY in /secret/path, SELECT 1")

    monkeypatch.setattr(driver, "list_jobs", broken)
    answer = web.api("GET", "/jobs")
    assert (answer.status_code, answer.json()["code"]) == (500, "server-error")
    assert "CANARY" not in answer.text
    assert answer.headers["x-request-id"] in answer.text


def test_the_key_of_a_session_is_not_in_the_log_of_a_failure(
    make_web: Callable[..., Web], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    web = make_web("memory")
    key = web.api("POST", "/sessions", {"worker": "w", "queues": ["default"]}).json()["key"]

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(web.app.ready(), "claim", broken)
    with caplog.at_level("ERROR", "winch"):
        assert web.api("POST", f"/sessions/{key}/claim", {}).status_code == 500
    assert "/api/v1/sessions/…/claim failed" in caplog.text
    assert key not in caplog.text


# -- changes from elsewhere --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://evil.test"},
        {"origin": "null"},
    ],
)
def test_other_sites_change_nothing(make_web: Callable[..., Web], headers: dict[str, str]) -> None:
    web = make_web()
    job = web.add.enqueue(1)
    answer = web.api("POST", f"/jobs/{job.id}/cancel", {}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "cross-site")
    assert job.refresh().state is JobState.READY


def test_reading_changes_nothing(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    job = web.add.enqueue(1)
    before = job.refresh().record
    for _ in range(2):
        for route in ROUTES:
            if not route.changes and route.media != "text/event-stream":
                web.ask("GET", route.path.replace("{id}", job.id).replace("{queue}", "default"))
    assert job.refresh().record == before


def test_a_read_only_site_refuses_every_change(make_web: Callable[..., Web]) -> None:
    web = make_web("memory", is_read_only=True)
    for route in ROUTES:
        if route.changes and route.needs != "public":
            answer = web.ask(route.method, filled(route.path), {}, headers=OWN)
            assert (answer.status_code, answer.json()["code"]) == (403, "read-only"), route.path
    assert web.api("GET", "/jobs").status_code == 200


# -- audit -------------------------------------------------------------------------------------------


def test_every_action_leaves_a_line(web: Web) -> None:
    job = web.add.enqueue(1)
    web.api("POST", f"/jobs/{job.id}/cancel", {"reason": "because"})
    web.api("POST", f"/jobs/{job.id}/retry", {})
    web.api("POST", "/queues/mail/pause", {"reason": "deploy"})
    web.api("POST", "/queues/mail/resume", {})
    web.api("POST", "/jobs:cancel", {"queue": "default"})
    web.api("POST", "/dead:replay", {"all": True})
    web.api("DELETE", f"/jobs/{job.id}")
    web.api("DELETE", f"/jobs/{job.id}")  # not there any more: nothing done, nothing noted
    lines = web.api("GET", "/audit").json()["lines"]
    assert [line["action"] for line in lines] == [
        "delete",
        "replay dead",
        "cancel jobs",
        "resume queue",
        "pause queue",
        "retry",
        "cancel",
    ]
    assert (lines[-1]["who"], lines[-1]["target"]) == ("local", job.id)
    assert lines[-1]["detail"]["reason"] == "because"
    page = web.api("GET", f"/audit?limit=2&cursor={lines[1]['id']}").json()
    assert [line["action"] for line in page["lines"]] == ["cancel jobs", "resume queue"]


@pytest.mark.parametrize(
    "host, is_it", [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.5.0.1", True),
                    ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False),
                    ("", False)]
)  # fmt: skip
def test_which_addresses_are_loopback(host: str, is_it: bool) -> None:
    assert is_loopback(host) is is_it


def test_the_description_names_every_route(make_web: Callable[..., Web]) -> None:
    described = make_web().api("GET", "/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    for route in ROUTES:
        if not route.is_page:
            assert described["paths"][route.path][route.method.lower()]["x-winch-right"] == route.needs
