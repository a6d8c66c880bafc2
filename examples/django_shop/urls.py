"""Orders at /orders, Django's admin at /admin/, Winch's dashboard at /jobs/."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from examples.django_shop.shop import views

urlpatterns = [
    path("orders", views.orders),
    path("async-orders", views.async_orders),
    path("orders/<str:number>", views.order),
    path("admin/", admin.site.urls),
    path("jobs/", include("winch.integrations.django.urls")),
]
