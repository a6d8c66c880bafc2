"""Webhook endpoints over HTTP."""

from __future__ import annotations

import base64
from collections.abc import Callable

from tests.web.kit import Web

SECRET = "whsec_" + base64.b64encode(b"CANARY-0123456789-CANARY-0123456").decode()
NEW = "whsec_" + base64.b64encode(b"CANARY-9876543210-CANARY-9876543").decode()


def test_the_life_of_an_endpoint_over_http(web: Web) -> None:
    web.app.webhooks.setup()
    body = {
        "url": "https://example.com/h?token=abcdef",
        "events": ["order.*"],
        "secret": SECRET,
        "tenant": "a",
    }
    answers = [web.api("POST", "/webhooks", body)]
    assert answers[0].status_code == 201
    endpoint = answers[0].json()["id"]
    path = f"/webhooks/{endpoint}"
    assert answers[0].headers["location"].endswith(path)

    def call(method: str, rest: str = "", body: object = None) -> dict[str, object]:
        answer = web.api(method, f"{path}{rest}", body)
        answers.append(answer)
        assert answer.status_code == 200, answer.text
        found: dict[str, object] = answer.json()
        return found

    assert call("GET")["secrets"] == 1
    assert call("POST", "/rotate", {"secret": NEW})["secrets"] == 2
    assert call("PATCH", body={"events": ["*"]})["events"] == ["*"]
    assert call("POST", "/disable", {"reason": "asked"})["reason"] == "asked"
    answers.append(web.api("POST", f"{path}/replay", {"start": "2026-01-01T00:00:00Z"}))
    assert (answers[-1].status_code, "is disabled" in answers[-1].text) == (422, True)
    assert call("POST", "/enable", {})["is_disabled"] is False
    web.app.webhooks.publish("order.paid", 1, tenant="a")
    web.app.run_worker(burst=True)
    replayed = call("POST", "/replay", {"start": "2026-01-01T00:00:00Z", "dry_run": True})
    assert (replayed["matched"], replayed["enqueued"]) == (1, 0)
    assert call("GET", "/deliveries?limit=5")["deliveries"] != []
    answers.append(web.api("GET", "/webhooks?tenant=a"))
    assert [one["id"] for one in answers[-1].json()["endpoints"]] == [endpoint]
    assert web.api("GET", "/webhooks?tenant=b").json() == {"endpoints": []}
    assert call("DELETE")["is_removed"] is True
    assert web.api("GET", path).status_code == 404
    answers.append(web.api("GET", "/audit"))
    actions = [line["action"] for line in answers[-1].json()["lines"]]
    assert actions[-1] == "subscribe webhook"
    assert {"rotate webhook secret", "replay webhooks", "remove webhook", "enable webhook"} <= set(
        actions
    )
    wrong = web.api("POST", "/webhooks", {**body, "secret": f"x{SECRET}"})
    assert wrong.status_code == 422
    for answer in (*answers, wrong):
        for secret in (SECRET, NEW, "abcdef", "CANARY"):
            assert secret not in answer.text


def test_an_internal_address_is_refused(web: Web) -> None:
    for url in ("http://example.com", "https://example.com:22", "https://u:p@example.com", "ftp://x"):
        body = {"url": url, "events": ["e"], "secret": SECRET}
        assert web.api("POST", "/webhooks", body).status_code == 422, url


def test_a_token_of_a_tenant_has_its_own_endpoints(make_web: Callable[..., Web]) -> None:
    web = make_web("memory", auth="tokens")
    token = web.token("operate", tenant="acme")
    body = {"url": "https://example.com", "events": ["e"], "secret": SECRET}
    made = web.api("POST", "/webhooks", body, token=token).json()
    assert made["tenant"] == "acme"
    other = web.app.webhooks.subscribe("https://example.com", ["e"]).endpoint.id
    assert web.api("GET", f"/webhooks/{other}", token=token).status_code == 404
    assert web.api("POST", f"/webhooks/{other}/disable", {}, token=token).status_code == 404
    found = web.api("GET", "/webhooks", token=token).json()["endpoints"]
    assert [one["id"] for one in found] == [made["id"]]
    assert web.api("GET", "/webhooks?tenant=other", token=token).json() == {"endpoints": []}
    foreign = web.api("POST", "/webhooks", {**body, "tenant": "globex"}, token=token)
    assert foreign.status_code == 403


def test_a_caller_of_one_tenant_forges_no_event_of_another(make_web: Callable[..., Web]) -> None:
    """An event is a job of the outbox. Its payload names the tenant whose endpoints get it, signed."""
    web = make_web("memory", auth="tokens")
    web.app.webhooks.setup()
    web.app.outbox.sink("orders", lambda message: None)
    forged = {"event": "invoice.paid", "tenant": "acme", "key": None, "data": {"forged": True}}
    args = {"payload": forged}
    for scope in ({"tenant": "bolt"}, {"queues": ("outbox", "default")}):
        token = web.token("enqueue", **scope)
        for topic in ("webhooks", "webhook-deliveries", "orders"):
            body = {"task": f"outbox:{topic}", "args": args}
            for path, sent in (("/jobs", body), ("/jobs:bulk", {"jobs": [body]})):
                answer = web.api("POST", path, sent, token=token)
                assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), answer.text
    schedule = {"name": "s", "task": "outbox:webhooks", "every": "1h", "args": args, "queue": "outbox"}
    token = web.token("operate", queues=("outbox", "default"))
    assert web.api("POST", "/schedules", schedule, token=token).status_code == 403
    assert web.app.jobs.list() == []
    named = web.token("enqueue", tasks=("outbox:orders",))
    body = {"task": "outbox:orders", "args": args}
    assert web.api("POST", "/jobs", body, token=named).status_code == 202
