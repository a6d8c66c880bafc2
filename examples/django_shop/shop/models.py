"""What the shop keeps."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """What a customer has ordered. `job` is the id of the job that writes its receipt."""

    number = models.CharField(max_length=40, unique=True)
    job = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return str(self.number)


class Receipt(models.Model):
    """The receipt of an order: one, however often its job runs."""

    order = models.OneToOneField(Order, on_delete=models.CASCADE)
    text = models.TextField()
    attempt = models.IntegerField(default=1)

    def __str__(self) -> str:
        return str(self.text)
