"""Where the models of the shop are, when it has a database of its own for them."""

from __future__ import annotations

from typing import Any

ORDERS = "orders"


class OrdersRouter:
    """Orders and receipts are in the database `orders`, all else is in `default`."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return ORDERS if model._meta.app_label == "shop" else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return self.db_for_read(model)

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return (db == ORDERS) == (app_label == "shop")
