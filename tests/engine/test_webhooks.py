"""`app.webhooks`: endpoints as data, order per key, secrets that rotate, failures that end."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine.webhook_kit import Customer, customer
from winch import App, ConfigError, EndpointNotFound, JobNotFound, Keyring, Retry
from winch.areas.sinks import Message
from winch.areas.webhooks import delivery_log, endpoints
from winch.areas.webhooks.delivery import EventSink, event_payload
from winch.areas.webhooks.delivery_log import DeliveryAttempt
from winch.engine.base import http_post
from winch.storage.kv_records import KvFilter
from winch.testing import virtual

SOON = Retry.fixed("20ms", attempts=3, jitter="none")
BEFORE = datetime(2020, 1, 1, tzinfo=UTC)


def new_app(url: str, **given: Any) -> App:
    options = {"retry": SOON, "allow_private": True, "failures": 3, "disable_after": "0s", **given}
    keys = options.pop("keys", None)
    app = App(url, keys=keys)
    app.driver.migrate()
    app.webhooks.setup(**options)
    return app


def run(app: App) -> None:
    """Until nothing waits: a burst may end before a retry is due."""
    for _ in range(20):
        app.run_worker(burst=True)
        if not app.jobs.list(state=["ready", "scheduled", "retrying", "blocked", "running"], limit=1):
            return
        time.sleep(0.02)


@pytest.fixture
def acme() -> Iterator[Customer]:
    with customer() as server:
        yield server


@pytest.fixture
def app(store_url: str) -> Iterator[App]:
    made = new_app(store_url)
    yield made
    made.close()


@pytest.fixture
def one(tmp_path: Path) -> Iterator[App]:
    made = new_app(f"sqlite:///{tmp_path}/winch.db")
    yield made
    made.close()


def subscribe(app: App, acme: Customer, *events: str, **given: Any) -> str:
    made = app.webhooks.subscribe(acme.url, events or ["*"], **given)
    acme.secrets.append(made.secret)
    return made.endpoint.id


# -- on every store ----------------------------------------------------------------------------------


def test_the_life_of_an_endpoint(app: App, acme: Customer) -> None:
    """The endpoint gets events in order, fails, is disabled and enabled, and a replay sends the rest."""
    hooks = app.webhooks
    endpoint = subscribe(app, acme, "order.*", tenant="acme")
    for n in range(4):
        hooks.publish("order.paid", n, tenant="acme", key=f"k{n % 2}")
    hooks.publish("order.paid", "other tenant", tenant="globex")
    hooks.publish("invoice.paid", "other event", tenant="acme")
    run(app)
    assert sorted(acme.data) == [0, 1, 2, 3]
    assert [n for n in acme.data if n % 2] == [1, 3]
    assert [n for n in acme.data if n % 2 == 0] == [0, 2]
    assert {line.status for line in hooks.deliveries(endpoint)} == {204}

    acme.status = 500
    hooks.publish("order.paid", 4, tenant="acme", key="k0")
    hooks.publish("order.paid", 6, tenant="acme", key="k0")
    run(app)
    found = hooks.get(endpoint)
    assert (found.is_disabled, found.disabled_by, found.failures) == (True, "failures", 3)
    assert "3 attempts in a row failed since" in (found.reason or "")
    assert "answered 500" in (found.reason or "")
    [line] = [one for one in app.audit.list() if one.action == "disable webhook"]
    assert (line.who, line.via, line.target, line.detail["tenant"]) == (
        "winch", "worker", endpoint, "acme",
    )  # fmt: skip
    requests = acme.requests
    hooks.publish("order.paid", 8, tenant="acme", key="k0")
    run(app)
    assert acme.requests == requests, "nothing is sent to a disabled endpoint"
    with pytest.raises(ConfigError, match="is disabled; enable it before a replay"):
        hooks.replay(endpoint, start=BEFORE)

    acme.status = None
    enabled = hooks.enable(endpoint)
    assert (enabled.is_disabled, enabled.failures, enabled.reason) == (False, 0, None)
    acme.accepted.clear()
    assert hooks.replay(endpoint, start=BEFORE, dry_run=True).matched == 7
    assert hooks.replay(endpoint, start=BEFORE).enqueued == 7
    hooks.publish("order.paid", 10, tenant="acme", key="k0")
    run(app)
    assert [n for n in acme.data if n % 2 == 0] == [0, 2, 4, 6, 8, 10]
    assert [n for n in acme.data if n % 2] == [1, 3]
    hooks.remove(endpoint)
    with pytest.raises(EndpointNotFound):
        hooks.get(endpoint)
    assert hooks.list(tenant="acme") == []


def test_a_secret_rotates_while_deliveries_go_out(app: App, acme: Customer) -> None:
    """No delivery is rejected by a receiver that changes its secret at any moment of the overlap."""
    endpoint = subscribe(app, acme)
    old = acme.secrets[0]
    for n in range(10):
        app.webhooks.publish("e", n, key="k")
    working = threading.Thread(target=run, args=(app,))
    working.start()
    new = app.webhooks.rotate(endpoint)
    working.join()
    assert app.webhooks.get(endpoint).secrets == 2
    for n in range(10, 15):
        app.webhooks.publish("e", n, key="k")
    run(app)  # the receiver has only the old one
    assert acme.secrets == [old]
    acme.secrets = [new]
    for n in range(15, 20):
        app.webhooks.publish("e", n, key="k")
    run(app)
    assert (acme.data, acme.rejected) == ([*range(20)], [])
    # At the end of the overlap the old one signs no more.
    app.webhooks.rotate(endpoint, secret=new, overlap="0s")
    assert app.webhooks.get(endpoint).secrets == 1
    acme.secrets = [old]
    app.webhooks.publish("e", 20)
    run(app)
    assert (len(acme.accepted), len(acme.rejected)) == (20, 3)


def test_many_changes_at_once_lose_none(app: App, acme: Customer) -> None:
    endpoint = subscribe(app, acme)
    driver = app.ready()

    def count(before: endpoints.StoredEndpoint) -> endpoints.StoredEndpoint:
        return msgspec.structs.replace(before, failures=before.failures + 1)

    async def all_at_once() -> None:
        await asyncio.gather(
            *(app.client.arun(endpoints.change(driver, endpoint, count)) for _ in range(20))
        )
        await app.aclose()

    asyncio.run(all_at_once())
    assert app.webhooks.get(endpoint).failures == 20
    app.webhooks.remove(endpoint)
    with pytest.raises(EndpointNotFound):  # a change that was on its way brings nothing back
        app.client.run(endpoints.change(app.ready(), endpoint, count))


# -- events ------------------------------------------------------------------------------------------


def test_an_event_comes_and_goes_with_the_callers_transaction(one: App, acme: Customer) -> None:
    subscribe(one, acme)
    with suppress(ZeroDivisionError), one.transaction() as conn:
        one.webhooks.publish("e", "never", conn=conn)
        raise ZeroDivisionError
    with one.transaction() as conn:
        job = one.webhooks.publish("e", {"total": 9}, key="7", conn=conn)
    asyncio.run(one.webhooks.apublish("e", 2))
    run(one)
    first = next(event for event in acme.accepted if event["data"] != 2)
    assert first == {
        "specversion": "1.0",
        "id": job.id,
        "source": "winch",
        "type": "e",
        "time": job.record.created_at.isoformat().replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "subject": "7",
        "partitionkey": "7",
        "data": {"total": 9},
    }
    assert len(acme.accepted) == 2


def test_an_event_that_is_dealt_with_twice_is_delivered_once(one: App, acme: Customer) -> None:
    subscribe(one, acme)
    job = one.webhooks.publish("e", 1)
    run(one)
    record = job.refresh().record
    again = Message(id=job.id, topic="webhooks", key=None, created_at=record.created_at, attempt=2,
                    payload=event_payload("e", None, None, 1), headers={})  # fmt: skip
    fan_out = EventSink(one.client, one.outbox, one.webhooks._set_up())
    asyncio.run(fan_out.deliver(again))
    run(one)
    assert acme.data == [1]


@pytest.mark.parametrize(
    "pattern, event, is_matched",
    [
        ("*", "order.paid", True),
        ("order.*", "order.paid", True),
        ("order.*", "order.line.added", True),
        ("order.*", "orders.paid", False),
        ("order.*", "order", False),
        ("order.paid", "order.paid", True),
        ("order.paid", "order.paid.late", False),
        ("*", endpoints.DISABLED_EVENT, False),
        ("winch.*", endpoints.DISABLED_EVENT, True),
    ],
)
def test_which_events_an_endpoint_gets(pattern: str, event: str, is_matched: bool) -> None:
    stored = endpoints.StoredEndpoint(
        v="1", url="https://x", events=(pattern,), tenant="a", created_at=BEFORE, secrets=()
    )
    assert stored.matches(event, "a") is is_matched
    assert not stored.matches(event, "b")
    assert not stored.matches(event, None)
    assert msgspec.structs.replace(stored, tenant=None).matches(event, "b") is is_matched
    assert stored.body.startswith('{"v":"1",')


def test_an_endpoint_without_a_tenant_gets_all_and_learns_of_the_others_end(
    one: App, acme: Customer
) -> None:
    with customer() as operator:
        subscribe(one, operator, "*", "winch.endpoint.disabled")
        endpoint = subscribe(one, acme, tenant="acme")
        acme.status = 410
        one.webhooks.publish("e", 1, tenant="acme")
        one.webhooks.publish("e", 2, tenant="globex")
        run(one)
        found = one.webhooks.get(endpoint)
        assert (found.is_disabled, found.disabled_by) == (True, "gone")
        assert acme.requests == 1
        disabled = [event for event in operator.accepted if event["type"] == "winch.endpoint.disabled"]
        assert [event["data"] for event in disabled] == [
            {"endpoint": endpoint, "tenant": "acme", "reason": f"{acme.host} answered 410 (gone)"}
        ]
        assert sorted(event["data"] for event in operator.accepted if event not in disabled) == [1, 2]


def test_a_process_that_dies_before_the_announcement_leaves_it_to_the_next(
    one: App, acme: Customer
) -> None:
    endpoint = subscribe(one, acme)

    def disabled(before: endpoints.StoredEndpoint) -> endpoints.StoredEndpoint:
        return msgspec.structs.replace(before, disabled_at=BEFORE, disabled_by="failures", reason="r",
                                       is_unannounced=True)  # fmt: skip

    for n in range(3):
        one.webhooks.publish("e", n)
    one.webhooks.publish("e", "last")

    # The events are dealt with, and then the endpoint is disabled by a process that dies at once.
    async def fan_out() -> None:
        sink = EventSink(one.client, one.outbox, one.webhooks._set_up())
        for job in (await one.outbox.alist("webhooks"))[0]:
            payload = msgspec.json.decode(job.record.args)["payload"]
            at = job.record.created_at
            message = Message(id=job.id, topic="webhooks", key=None, payload=payload, headers={},
                              created_at=at, attempt=1)  # fmt: skip
            await sink.deliver(message)

    asyncio.run(fan_out())
    one.client.run(endpoints.change(one.ready(), endpoint, disabled))
    run(one)
    assert acme.requests == 0
    lines = [line for line in one.audit.list() if line.action == "disable webhook"]
    assert [line.detail["reason"] for line in lines] == ["r"]
    events = [job.record.args for job in one.outbox.list("webhooks")[0]]
    assert sum("winch.endpoint.disabled" in args for args in events) == 1


def test_only_a_run_of_failures_over_time_disables(tmp_path: Path, acme: Customer) -> None:
    app = new_app(f"sqlite:///{tmp_path}/never.db", failures=3, disable_after="1h",
                  retry=Retry.fixed("10m", attempts=50, jitter="none"))  # fmt: skip
    with virtual(app) as world:
        endpoint = subscribe(app, acme)
        acme.status = 503
        app.webhooks.publish("e", 1)
        world.advance("55m")
        found = app.webhooks.get(endpoint)
        assert (found.is_disabled, found.failures) == (False, 6)
        acme.status = None
        world.advance("10m")
        found = app.webhooks.get(endpoint)
        assert (found.failures, found.failing_since, acme.data) == (0, None, [1])
        acme.status = 503
        app.webhooks.publish("e", 2)
        world.advance("1h5m")
        found = app.webhooks.get(endpoint)
        assert (found.is_disabled, found.failures) == (True, 7)


def test_a_receiver_that_asks_for_time_gets_it(tmp_path: Path, acme: Customer) -> None:
    app = new_app(f"sqlite:///{tmp_path}/never.db", failures=99)
    with virtual(app) as world:
        subscribe(app, acme)
        acme.status, acme.headers = 429, {"Retry-After": "7"}
        app.webhooks.publish("e", 1)
        world.advance("6s")
        assert acme.requests == 1
        acme.status = None
        world.advance("2s")
        assert acme.data == [1]


# -- replay ------------------------------------------------------------------------------------------


def test_a_replay_of_a_range_and_of_some(one: App, acme: Customer) -> None:
    endpoint = subscribe(one, acme, tenant="acme")
    jobs = [one.webhooks.publish("e", n, tenant="acme", key="k") for n in range(6)]
    foreign = one.webhooks.publish("e", "foreign", tenant="globex")
    run(one)
    acme.accepted.clear()
    at = [job.refresh().record.created_at for job in jobs]
    assert one.webhooks.replay(endpoint, start=at[1], end=at[4]).enqueued == 3
    run(one)
    assert acme.data == [1, 2, 3]
    acme.accepted.clear()
    assert one.webhooks.replay(endpoint, events=[jobs[5].id, jobs[2].id]).enqueued == 2
    run(one)
    assert acme.data == [2, 5], "the order of the key, not of the call"
    assert [event["id"] for event in acme.accepted] == [jobs[2].id, jobs[5].id]
    for wrong in (foreign.id, "00000000-0000-7000-8000-000000000000"):
        with pytest.raises(JobNotFound):
            one.webhooks.replay(endpoint, events=[jobs[0].id, wrong])
    for given in ({}, {"start": at[0], "events": [jobs[0].id]}):
        with pytest.raises(ConfigError, match="start=, with or without end=, or events="):
            one.webhooks.replay(endpoint, **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="start must be a datetime with a time zone"):
        one.webhooks.replay(endpoint, start=datetime.fromisoformat("2026-01-01"))


# -- the log -----------------------------------------------------------------------------------------


def test_the_log_has_each_attempt_and_a_bound(one: App, acme: Customer) -> None:
    endpoint = subscribe(one, acme)
    acme.status = 500
    job = one.webhooks.publish("e", 1)
    run(one)
    last, _, first = one.webhooks.deliveries(endpoint)
    assert (first.attempt, last.attempt, first.event, first.type) == (1, 3, job.id, "e")
    assert (first.status, first.error) == (500, f"{acme.host} answered 500")
    driver = one.ready()
    for n in range(300):
        line = DeliveryAttempt(delivery="d", event="e", type="t", at=BEFORE + timedelta(seconds=n),
                               attempt=1, status=200, error=None, seconds=0.1)  # fmt: skip
        one.client.run(delivery_log.write(driver, endpoint, line))
    which = KvFilter(book=delivery_log.BOOK, limit=1000)
    assert len(driver.run(driver.kv_list(which))) < 303, "some were removed on the way"
    one.client.run(delivery_log.trim(driver, endpoint))
    assert len(driver.run(driver.kv_list(which))) == delivery_log.KEPT
    assert one.webhooks.deliveries(endpoint, limit=1)[0] == last
    one.webhooks.remove(endpoint)
    assert driver.run(driver.kv_list(which)) == []


# -- secrets -----------------------------------------------------------------------------------------


def test_secrets_are_encrypted_where_there_are_keys(tmp_path: Path, acme: Customer) -> None:
    url, keys = f"sqlite:///{tmp_path}/winch.db", Keyring({"k1": os.urandom(32)})
    app = new_app(url, keys=keys)
    endpoint = subscribe(app, acme)
    new = app.webhooks.rotate(endpoint)
    driver = app.ready()
    [line] = driver.run(driver.kv_list(KvFilter(book=endpoints.BOOK)))
    for secret in (acme.secrets[0], new):
        assert secret.removeprefix("whsec_") not in line.body
        assert secret not in repr(app.webhooks.get(endpoint))
    app.webhooks.publish("e", 1)
    run(app)
    assert acme.data == [1]
    # A worker without the key sends nothing, and the endpoint is not to blame.
    other = new_app(url)
    app.webhooks.publish("e", 2)
    run(other)
    assert acme.requests == 1
    assert app.webhooks.get(endpoint).failures == 0
    other.close()
    app.close()


def test_a_subscription_does_not_show_its_secret_by_accident(one: App, acme: Customer) -> None:
    made = one.webhooks.subscribe(acme.url, ["e"])
    assert made.secret.startswith("whsec_")
    assert made.secret not in f"{made!r} {made}"
    assert made.secret not in str(one.audit.list())


# -- addresses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "169.254.169.254", "192.168.0.1", "100.64.0.1", "0.0.0.0", "::1",
     "::ffff:127.0.0.1", "64:ff9b::7f00:1", "fd00:ec2::254", "fe80::1", "2002:7f00:1::"],
)  # fmt: skip
def test_no_internal_address_is_reached(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is public when the endpoint is added, and points inside when the delivery goes out."""
    app = new_app(f"sqlite:///{tmp_path}/winch.db", allow_private=False, failures=1)
    endpoint = app.webhooks.subscribe("https://hooks.example.com/x?token=CANARY", ["e"]).endpoint.id
    dialled: list[Any] = []

    async def rebound(host: str, port: int) -> list[str]:
        return ["93.184.216.34", address]

    async def dial(*args: Any, **kwargs: Any) -> Any:
        dialled.append(args)
        raise ConnectionError

    monkeypatch.setattr(http_post.post, "__kwdefaults__", {"lookup": rebound})
    monkeypatch.setattr(asyncio, "open_connection", dial)
    app.webhooks.publish("e", 1)
    run(app)
    assert dialled == []
    found = app.webhooks.get(endpoint)
    assert found.is_disabled
    assert "CANARY" not in (found.reason or "")
    [line] = app.webhooks.deliveries(endpoint)
    assert line.status is None
    assert line.error is not None
    assert "CANARY" not in line.error
    app.close()


def test_a_redirect_is_a_failure_and_is_not_followed(one: App, acme: Customer) -> None:
    with customer() as inside:
        endpoint = subscribe(one, acme)
        acme.status, acme.headers = 307, {"Location": inside.url}
        one.webhooks.publish("e", 1)
        run(one)
        assert (acme.requests, inside.requests) == (3, 0)
        assert one.webhooks.get(endpoint).is_disabled


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "say, match",
    [
        (lambda h: h.subscribe("http://example.com", ["e"]), "https://"),
        (lambda h: h.subscribe("https://example.com:22", ["e"]), "ports"),
        (lambda h: h.subscribe("https://u:p@example.com", ["e"]), "no user"),
        (lambda h: h.subscribe("https://example.com", "e"), "a list of names"),
        (lambda h: h.subscribe("https://example.com", []), "1 to 100 events"),
        (lambda h: h.subscribe("https://example.com", ["a b"]), "joined by dots"),
        (lambda h: h.subscribe("https://example.com", ["*.paid"]), "joined by dots"),
        (lambda h: h.subscribe("https://example.com", ["e"], secret="plain"), "whsec_"),
        (lambda h: h.subscribe("https://example.com", ["e"], tenant=""), "tenant must be"),
        (lambda h: h.publish("a b", 1), "joined by dots"),
        (lambda h: h.publish("winch.x", 1), "for Winch itself"),
        (lambda h: h.setup(), "called before"),
        (lambda h: h.rotate("ep_" + "0" * 32, overlap="31d"), "overlap must be up to 30d"),
    ],
)
def test_mistakes(tmp_path: Path, say: Any, match: str) -> None:
    app = new_app(f"sqlite:///{tmp_path}/winch.db", allow_private=False)
    with pytest.raises(ConfigError, match=match):
        say(app.webhooks)
    app.close()


@pytest.mark.parametrize("wrong", ["ep_" + "0" * 32, "x", "", "ep_" + "g" * 32])
def test_an_unknown_endpoint(one: App, wrong: str) -> None:
    for call in (one.webhooks.get, one.webhooks.disable, one.webhooks.enable, one.webhooks.remove,
                 one.webhooks.rotate, one.webhooks.deliveries):  # fmt: skip
        with pytest.raises(EndpointNotFound):
            call(wrong)


def test_setup_is_needed_and_checked(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/winch.db")
    with pytest.raises(ConfigError, match=r"call app\.webhooks\.setup\(\)"):
        app.webhooks.publish("e", 1)
    with pytest.raises(ConfigError, match="up to 10 minutes"):
        app.webhooks.setup(timeout="11m")
    with pytest.raises(ConfigError, match="failures must be"):
        app.webhooks.setup(failures=0)


def test_a_fifth_secret_waits_for_the_end_of_an_overlap(one: App, acme: Customer) -> None:
    endpoint = subscribe(one, acme)
    for _ in range(3):
        one.webhooks.rotate(endpoint)
    assert one.webhooks.get(endpoint).secrets == 4
    with pytest.raises(ConfigError, match="4 secrets sign for"):
        one.webhooks.rotate(endpoint)
    edited = one.webhooks.edit(endpoint, events=["x.*"])
    assert edited.events == ("x.*",)
    with pytest.raises(ConfigError, match="give a url or events"):
        one.webhooks.edit(endpoint)
