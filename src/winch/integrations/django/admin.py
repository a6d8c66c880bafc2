"""Jobs in Django's admin: a list to look at, with retry and cancel, and a link to the dashboard.

`winch.view_job` may look, `winch.operate_job` may act. Each action is in the audit log under the name of
the Django user, with `via` django.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, path, reverse

from winch import JobState
from winch.errors import WinchError
from winch.integrations.django.admin_schedules import JobScheduleAdmin
from winch.integrations.django.apps import backends
from winch.integrations.django.models import Job
from winch.integrations.django.stores import app_of

__all__ = ["JobAdmin", "JobScheduleAdmin"]

PAGE = 50
ACTIONS = ("retry", "cancel")


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    """The list of jobs. Nothing is added, changed or deleted here."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def may_operate(self, request: HttpRequest) -> bool:
        """Whether this user may retry and cancel."""
        return bool(request.user.has_perm("winch.operate_job"))

    def get_urls(self) -> list[Any]:
        own = [
            path(
                "<str:alias>/<str:job_id>/<str:action>",
                self.admin_site.admin_view(self.act),
                name="winch_job_act",
            )
        ]
        return [*own, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The newest jobs of a state, a page at a time."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        aliases = [backend.alias for backend in backends()]
        alias = request.GET.get("backend", aliases[0] if aliases else "default")
        state = request.GET.get("state") or None
        rows: list[dict[str, Any]] = []
        following, trouble = None, None
        try:
            found = app_of(alias).jobs.list(state=state, limit=PAGE, after=request.GET.get("after"))
            following = found.next
            rows = [_row(job.record) for job in found]
        except WinchError as error:
            trouble = str(error)
        context = {
            **self.admin_site.each_context(request),
            "title": "Jobs",
            "opts": self.model._meta,
            "rows": rows,
            "states": [str(one) for one in JobState],
            "state": state,
            "alias": alias,
            "aliases": aliases,
            "following": following,
            "trouble": trouble,
            "may_operate": self.may_operate(request),
            "dashboard": _dashboard(),
        }
        return TemplateResponse(request, "admin/winch/job/jobs.html", context)

    def act(self, request: HttpRequest, alias: str, job_id: str, action: str) -> HttpResponse:
        """Retry or cancel one job."""
        if request.method != "POST" or action not in ACTIONS:
            return HttpResponseNotAllowed(["POST"])
        if not self.may_operate(request):
            raise PermissionDenied
        try:
            with app_of(alias).audit.acting(request.user.get_username(), via="django"):
                getattr(app_of(alias).jobs, action)(job_id)
        except WinchError as error:
            messages.error(request, str(error))
        else:
            messages.success(request, f"{action}: job {job_id}")
        return redirect(f"{reverse('admin:winch_job_changelist')}?backend={alias}")


def _row(record: Any) -> dict[str, Any]:
    return {
        "record": record,
        "error": record.error,
        "actions": ["retry"] if record.state.is_final else ["cancel"],
    }


def _dashboard() -> str | None:
    """Where the project has mounted the dashboard, if anywhere."""
    try:
        return str(reverse("winch:home"))
    except NoReverseMatch:
        return None
