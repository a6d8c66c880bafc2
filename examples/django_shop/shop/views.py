"""An order and its job in one transaction."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.db import router, transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from examples.django_shop.shop.models import Order
from examples.django_shop.shop.tasks import write_receipt


class Declined(Exception):
    """The payment was refused: nothing of the order may stay."""


@csrf_exempt
@require_POST
def orders(request: HttpRequest) -> JsonResponse:
    """Take an order. Its row and its job are committed together, or neither is."""
    number = request.POST["number"]
    try:
        with transaction.atomic(using=router.db_for_write(Order)):
            order = Order.objects.create(number=number)
            result = write_receipt.enqueue(number)
            order.job = result.id
            order.save()
            if request.POST.get("card") == "declined":
                raise Declined
    except Declined:
        return JsonResponse({"error": "the card was declined"}, status=402)
    return JsonResponse(
        {"number": number, "job": order.job}, status=202, headers={"Location": f"/orders/{number}"}
    )


@csrf_exempt
@require_POST
async def async_orders(request: HttpRequest) -> JsonResponse:
    """`orders` as a coroutine. Django's transactions are synchronous, so they have a thread."""
    answer: JsonResponse = await sync_to_async(orders)(request)
    return answer


@require_GET
def order(request: HttpRequest, number: str) -> JsonResponse:
    """The order and the state of its receipt."""
    found = get_object_or_404(Order, number=number)
    result = write_receipt.get_result(found.job)
    return JsonResponse({"number": number, "job": found.job, "status": result.status})
