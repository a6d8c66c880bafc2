"""The web side: `flask --app examples.flask_shop.web run`, or gunicorn with `create_app()`."""

from __future__ import annotations

import hmac
import os

from flask import Flask, Response, abort, jsonify, make_response, request

from examples.flask_shop import orders
from examples.flask_shop.store import jobs
from winch.integrations.flask import Winch, accepted, job_blueprint, mount_dashboard
from winch.types import JobRecord
from winch.web import Access

winch_ext = Winch(jobs)


def customer_of_request() -> str:
    """The login of this example: a header. Use that of your application."""
    return request.headers.get("x-customer", "")


def is_own(job: JobRecord) -> bool:
    """A customer sees the jobs of the customer's own orders."""
    return job.tenant is not None and job.tenant == customer_of_request()


def access_of_request() -> Access | None:
    """Operators of the shop may use the dashboard."""
    wanted = os.environ.get("SHOP_OPERATOR_KEY", "")
    key = request.headers.get("x-operator-key", "")
    is_operator = wanted and hmac.compare_digest(key.encode(), wanted.encode())
    return Access("operator", roles=("operate",)) if is_operator else None


def create() -> Response:
    """Take an order. Its row and its job are committed together, or neither is."""
    customer = customer_of_request()
    if not customer:
        abort(401)
    new = request.get_json()
    try:
        job = orders.place(new["number"], customer, new.get("card", ""))
    except orders.Declined:
        return make_response({"error": "the card was declined"}, 402)
    return accepted(job, {"number": new["number"]})


def receipt(number: str) -> Response:
    """The receipt of an order."""
    text = orders.receipt_of(number)
    if text is None:
        abort(404)
    return jsonify({"text": text})


def create_app() -> Flask:
    """The application."""
    site = Flask(__name__)
    site.config["SHOP_NAME"] = "Flask shop"
    winch_ext.init_app(site)
    site.add_url_rule("/orders", view_func=create, methods=["POST"])
    site.add_url_rule("/receipts/<number>", view_func=receipt)
    site.register_blueprint(job_blueprint(jobs, may_read=is_own, with_result=True))
    mount_dashboard(site, "/ops", jobs, authenticate=access_of_request)
    return site
