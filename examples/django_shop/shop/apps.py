"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Orders and receipts."""

    name = "examples.django_shop.shop"
    label = "shop"
