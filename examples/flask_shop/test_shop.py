"""The shop under its own tests: `pytest examples/flask_shop`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from uuid import uuid4

import pytest
from flask.testing import FlaskClient

os.environ.setdefault("SHOP_URL", f"sqlite:///{Path(tempfile.mkdtemp()) / 'shop.db'}")
os.environ["SHOP_OPERATOR_KEY"] = "CANARY"

from examples.flask_shop.store import Order, create_tables, jobs, transaction
from examples.flask_shop.tasks import write_receipt
from examples.flask_shop.web import create_app
from winch import ConfigError

ADA = {"x-customer": "ada"}


@pytest.fixture(scope="module")
def client() -> FlaskClient:
    create_tables()
    return create_app().test_client()


def test_an_order_is_accepted_and_its_receipt_written(client: FlaskClient) -> None:
    number = uuid4().hex
    answer = client.post("/orders", json={"number": number}, headers=ADA)
    assert answer.status_code == 202
    location = answer.headers["location"]
    assert location == f"/jobs/{answer.get_json()['id']}"
    waiting = client.get(location, headers=ADA)
    assert (waiting.get_json()["state"], waiting.headers["retry-after"]) == ("ready", "1")
    assert client.get(f"/receipts/{number}").status_code == 404
    jobs.run_worker(queues=["mail"], burst=True)
    done = client.get(location, headers=ADA)
    # The name of the shop is in the configuration of the application: the handler had its context.
    text = f"Flask shop: receipt for {number}"
    assert (done.get_json()["state"], done.get_json()["result"]) == ("completed", text)
    assert "retry-after" not in done.headers
    assert client.get(f"/receipts/{number}").get_json() == {"text": text}


def test_a_declined_order_leaves_neither_a_row_nor_a_job(client: FlaskClient) -> None:
    before = len(jobs.jobs.list(task=write_receipt.name, limit=1000))
    number = uuid4().hex
    answer = client.post("/orders", json={"number": number, "card": "declined"}, headers=ADA)
    assert answer.status_code == 402
    assert len(jobs.jobs.list(task=write_receipt.name, limit=1000)) == before
    with transaction() as session:
        assert session.get(Order, number) is None


def test_customers_see_their_own_jobs_only(client: FlaskClient) -> None:
    location = client.post("/orders", json={"number": uuid4().hex}, headers=ADA).headers["location"]
    assert client.get(location, headers={"x-customer": "eve"}).status_code == 404
    assert client.get(location).status_code == 404
    assert client.get("/jobs/none", headers=ADA).status_code == 404


def test_the_dashboard_is_for_operators(client: FlaskClient) -> None:
    assert client.get("/ops/").status_code == 401
    key = {"x-operator-key": "CANARY", "accept": "text/html"}
    page = client.get("/ops/", headers=key)
    assert page.status_code == 200
    assert 'href="/ops/jobs"' in page.text
    assert client.get("/ops/static/winch.js", headers=key).status_code == 200


def test_an_enqueue_outside_a_session_is_refused() -> None:
    with pytest.raises(ConfigError, match="outside a session"):
        write_receipt.enqueue("1")
