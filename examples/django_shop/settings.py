"""The shop's settings. $SHOP_DATABASE is a postgresql:// address; without it the shop uses SQLite."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

BASE_DIR = Path(os.environ.get("SHOP_FOLDER", Path(__file__).resolve().parent))
SECRET_KEY = os.environ.get("SHOP_SECRET", "an example needs no secret, a real shop does")
DEBUG = False
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "examples.django_shop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "winch.integrations.django",
    "examples.django_shop.shop",
]
if importlib.util.find_spec("django.tasks") is None:  # Django 5.2: the package has the same API
    INSTALLED_APPS.append("django_tasks")

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "winch.integrations.django.RequestMiddleware",  # a job's log lines name the request behind it
]
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"request": {"()": "winch.integrations.django.RequestFilter"}},
    "formatters": {
        "shop": {
            "format": "request=%(request_id)s user=%(request_user)s job=%(job_id)s %(message)s",
        }
    },
    "handlers": {
        "shop": {"class": "logging.StreamHandler", "filters": ["request"], "formatter": "shop"}
    },
    "loggers": {"shop": {"handlers": ["shop"], "level": "INFO", "propagate": False}},
}
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


def postgres(url: str) -> dict[str, object]:
    """The entry of DATABASES for this address."""
    address = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(address.path.lstrip("/")),
        "USER": unquote(address.username or ""),
        "PASSWORD": unquote(address.password or ""),
        "HOST": address.hostname or "",
        "PORT": str(address.port or ""),
        "CONN_MAX_AGE": int(os.environ.get("SHOP_CONN_MAX_AGE", "0")),
        "CONN_HEALTH_CHECKS": True,
        "ATOMIC_REQUESTS": os.environ.get("SHOP_ATOMIC_REQUESTS") == "1",
        "OPTIONS": {"pool": True} if os.environ.get("SHOP_POOL") == "1" else {},
    }


if os.environ.get("SHOP_DATABASE"):
    DATABASES = {"default": postgres(os.environ["SHOP_DATABASE"])}
else:
    DATABASES = {
        "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(BASE_DIR / "shop.sqlite3")}
    }

# Three lines to start. PostgreSQL: the jobs are in the same database, in the schema `winch`, and an
# enqueue inside atomic() is part of that transaction. SQLite: a file beside Django's, after the commit.
TASKS: dict[str, dict[str, object]] = {
    "default": {
        "BACKEND": "winch.integrations.django.WinchBackend",
        "QUEUES": ["default", "mail"],
    }
}

# $SHOP_ORDERS_DATABASE: a second database for orders and receipts. The jobs are beside them, so that an
# order and its job stay one transaction.
if os.environ.get("SHOP_ORDERS_DATABASE"):
    DATABASES["orders"] = postgres(os.environ["SHOP_ORDERS_DATABASE"])
    DATABASE_ROUTERS = ["examples.django_shop.shop.routers.OrdersRouter"]
    TASKS["default"]["OPTIONS"] = {"database": "orders"}
