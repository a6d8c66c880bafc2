"""Jobs in Django's admin: a list to look at, with retry and cancel, and a link to the dashboard."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, reverse

from winch import JobState
from winch.errors import WinchError
from winch.integrations.django.admin_base import StoreAdmin
from winch.integrations.django.admin_schedules import JobScheduleAdmin
from winch.integrations.django.models import Job

__all__ = ["JobAdmin", "JobScheduleAdmin"]

PAGE = 50


@admin.register(Job)
class JobAdmin(StoreAdmin):
    """The list of jobs."""

    area = "jobs"
    verbs: ClassVar[tuple[str, ...]] = ("retry", "cancel")
    template = "admin/winch/job/jobs.html"

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The newest jobs of a state, a page at a time."""
        alias = self.chosen(request)
        app = self.app(alias)
        state = request.GET.get("state") or None
        rows: list[dict[str, Any]] = []
        following, trouble = None, None
        try:
            found = app.jobs.list(state=state, limit=PAGE, after=request.GET.get("after"))
            following = found.next
            rows = [_row(job.record) for job in found]
        except WinchError as error:
            trouble = str(error)
        return self.page(
            request,
            alias,
            rows=rows,
            verbs=self.verbs,
            states=[str(one) for one in JobState],
            state=state,
            following=following,
            trouble=trouble,
            dashboard=_dashboard(),
        )


def _row(record: Any) -> dict[str, Any]:
    return {
        "record": record,
        "error": record.error,
        "verbs": ["retry"] if record.state.is_final else ["cancel"],
    }


def _dashboard() -> str | None:
    """Where the project has mounted the dashboard, if anywhere."""
    try:
        return str(reverse("winch:home"))
    except NoReverseMatch:
        return None
