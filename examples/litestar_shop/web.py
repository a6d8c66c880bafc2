"""The web side: `litestar --app examples.litestar_shop.web:site run`."""

from __future__ import annotations

import hmac
import os
from dataclasses import dataclass
from typing import Annotated, Any

from litestar import Litestar, Response, get, post
from litestar.exceptions import HTTPException, NotAuthorizedException, NotFoundException
from litestar.params import Body
from starlette.requests import Request as DashboardRequest

from examples.litestar_shop import orders
from examples.litestar_shop.store import jobs
from winch.integrations.litestar import AnyRequest, WinchPlugin, accepted
from winch.types import JobRecord
from winch.web import Access

OPERATOR_KEY = os.environ.get("SHOP_OPERATOR_KEY", "")
# SHOP_WORKER=1: a worker inside the web process, for development.
QUEUES = ["mail"] if os.environ.get("SHOP_WORKER") else None


@dataclass
class NewOrder:
    """What a customer sends."""

    number: str
    card: str = ""


def customer_of(request: AnyRequest) -> str:
    """The login of this example: a header. Use that of your application."""
    return request.headers.get("x-customer", "")


def is_own(request: AnyRequest, job: JobRecord) -> bool:
    """A customer sees the jobs of the customer's own orders."""
    return job.tenant is not None and job.tenant == customer_of(request)


def access_of(request: DashboardRequest) -> Access | None:
    """Operators of the shop may use the dashboard."""
    key = request.headers.get("x-operator-key", "")
    is_operator = OPERATOR_KEY and hmac.compare_digest(key.encode(), OPERATOR_KEY.encode())
    return Access("operator", roles=("operate",)) if is_operator else None


@post("/orders", status_code=202, sync_to_thread=True)
def create(data: Annotated[NewOrder, Body()], request: AnyRequest) -> Response[dict[str, Any]]:
    """Take an order. Its row and its job are committed together, or neither is."""
    customer = customer_of(request)
    if not customer:
        raise NotAuthorizedException
    try:
        job = orders.place(data.number, customer, data.card)
    except orders.Declined:
        raise HTTPException("the card was declined", status_code=402) from None
    return accepted(request, job, {"number": data.number})


@get("/receipts/{number:str}", sync_to_thread=True)
def receipt(request: AnyRequest) -> dict[str, str]:
    """The receipt of an order."""
    text = orders.receipt_of(request.path_params["number"])
    if text is None:
        raise NotFoundException
    return {"text": text}


site = Litestar(
    [create, receipt],
    plugins=[
        WinchPlugin(
            jobs,
            queues=QUEUES,
            may_read=is_own,
            with_result=True,
            dashboard="/ops",
            authenticate=access_of,
        )
    ],
)
