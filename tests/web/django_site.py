"""A Django project with the dashboard mounted in it, asked under WSGI; run by test_django.py."""

from __future__ import annotations

import sys
from typing import Any

import django
from django.conf import settings

from winch import App

url = sys.argv[1]
app = App(url)
app.migrate()


@app.task(name="shop.add")
def add(a: int) -> int:
    return a


settings.configure(
    SECRET_KEY="x" * 50,
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["testserver"],
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"],
    MIDDLEWARE=["django.middleware.csrf.CsrfViewMiddleware"],
    WINCH_APP=app,
)
django.setup()

from django.http import HttpRequest  # noqa: E402  # only after setup
from django.test import Client  # noqa: E402
from django.urls import include, path  # noqa: E402

urlpatterns = [path("ops/jobs/", include("winch.integrations.django.urls"))]


class User:
    """A user with a session."""

    is_active = True
    is_authenticated = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_staff = name != "visitor"
        self.is_superuser = name == "root"

    def get_username(self) -> str:
        return self.name


def login(get_response: Any) -> Any:
    def middleware(request: HttpRequest) -> Any:
        name = request.headers.get("x-user")
        if name:
            request.user = User(name)
        return get_response(request)

    return middleware


settings.MIDDLEWARE = ["__main__.login", *settings.MIDDLEWARE]
job = add.enqueue(1)
client = Client(enforce_csrf_checks=True)
HTML = {"accept": "text/html", "sec-fetch-site": "same-origin"}
for user, page, act in ((None, 401, 401), ("visitor", 401, 401), ("ada", 200, 403), ("root", 200, 200)):
    headers = {} if user is None else {"x-user": user}
    assert client.get("/ops/jobs/api/v1/jobs", headers=headers).status_code == page, user
    answer = client.post(
        f"/ops/jobs/api/v1/jobs/{job.id}/cancel", "{}", content_type="application/json", headers=headers
    )
    assert answer.status_code == act, (user, answer.content)
assert job.refresh().state == "cancelled"

# A browser is redirected to the login. A logged-in user without access is refused.
sent = client.get("/ops/jobs/jobs?state=dead", headers=HTML)
assert (sent.status_code, sent["location"]) == (
    302,
    "/accounts/login/?next=/ops/jobs/jobs%3Fstate%3Ddead",
)
assert client.get("/ops/jobs/", headers={**HTML, "x-user": "visitor"}).status_code == 403
assert client.get("/ops/jobs/static/none.js", headers=HTML).status_code == 404

root = {**HTML, "x-user": "root"}
home = client.get("/ops/jobs/", headers=root)
assert home.status_code == 200, home.content
text = home.content.decode()
assert 'href="/ops/jobs/jobs"' in text
assert 'src="/ops/jobs/static/winch.js?v=' in text
assert client.get("/ops/jobs/static/winch.js").status_code == 200
assert home["content-security-policy"].startswith("default-src 'none'")
shown = client.get(f"/ops/jobs/jobs/{job.id}", headers=root).content.decode()
token = shown.split('name="form_token" value="')[1].split('"')[0]
retried = client.post(f"/ops/jobs/jobs/{job.id}/retry", {"form_token": token}, headers=root)
# Django's client sends forms as multipart; browsers send ours urlencoded.
assert retried.status_code == 415, retried.status_code
retried = client.post(
    f"/ops/jobs/jobs/{job.id}/retry",
    f"form_token={token}",
    content_type="application/x-www-form-urlencoded",
    headers=root,
)
assert retried.status_code == 303, retried.content
assert retried["location"] == f"/ops/jobs/jobs/{job.id}?did=retried"
assert job.refresh().state == "ready"
evil = client.post(
    f"/ops/jobs/jobs/{job.id}/cancel",
    f"form_token={token}",
    content_type="application/x-www-form-urlencoded",
    headers={**root, "sec-fetch-site": "cross-site"},
)
assert evil.status_code == 403
assert client.get("/ops/jobs/api/v1/events", headers=root).status_code == 501
lines = client.get("/ops/jobs/api/v1/audit", headers=root).json()["lines"]
assert [(line["who"], line["action"]) for line in lines] == [("root", "retry"), ("root", "cancel")]
sys.stdout.write("all is well\n")
