"""`path("jobs/", include("winch.integrations.django.urls"))`."""

from __future__ import annotations

from django.urls import path

from winch.integrations.django.dashboard import from_settings

app_name = "winch"
_serve = from_settings()
urlpatterns: list[object] = [path("", _serve, name="home"), path("<path:rest>", _serve, name="page")]
