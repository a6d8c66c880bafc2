"""The web side: `uvicorn examples.fastapi_shop.web:api`."""

from __future__ import annotations

import hmac
import os

from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel

from examples.fastapi_shop import orders
from examples.fastapi_shop.store import jobs
from winch.integrations.fastapi import accepted, job_router, lifespan, mount_dashboard
from winch.types import JobRecord
from winch.web import Access

OPERATOR_KEY = os.environ.get("SHOP_OPERATOR_KEY", "")
# SHOP_WORKER=1: a worker inside the web process, for development.
QUEUES = ["mail"] if os.environ.get("SHOP_WORKER") else None

api = FastAPI(title="A shop", lifespan=lifespan(jobs, queues=QUEUES))


class NewOrder(BaseModel):
    """What a customer sends."""

    number: str
    card: str = ""


def customer_of(request: Request) -> str:
    """The login of this example: a header. Use that of your application."""
    return request.headers.get("x-customer", "")


def is_own(request: Request, job: JobRecord) -> bool:
    """A customer sees the jobs of the customer's own orders."""
    return job.tenant is not None and job.tenant == customer_of(request)


def access_of(request: Request) -> Access | None:
    """Operators of the shop may use the dashboard."""
    key = request.headers.get("x-operator-key", "")
    is_operator = OPERATOR_KEY and hmac.compare_digest(key.encode(), OPERATOR_KEY.encode())
    return Access("operator", roles=("operate",)) if is_operator else None


@api.post("/orders", status_code=202)
def create(new: NewOrder, request: Request) -> Response:
    """Take an order. Its row and its job are committed together, or neither is."""
    customer = customer_of(request)
    if not customer:
        raise HTTPException(401)
    try:
        job = orders.place(new.number, customer, new.card)
    except orders.Declined:
        raise HTTPException(402, "the card was declined") from None
    return accepted(request, job, {"number": new.number})


@api.get("/receipts/{number}")
def receipt(number: str) -> dict[str, str]:
    """The receipt of an order."""
    text = orders.receipt_of(number)
    if text is None:
        raise HTTPException(404)
    return {"text": text}


api.include_router(job_router(jobs, may_read=is_own, with_result=True))
mount_dashboard(api, "/ops", jobs, authenticate=access_of)
