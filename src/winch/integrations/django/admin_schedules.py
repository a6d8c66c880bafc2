"""Schedules in Django's admin: those of the code and those that are added here.

`winch.view_jobschedule` may look, `winch.operate_jobschedule` may add, pause, resume, run and remove.
A schedule of the code is changed in the code: it can be paused here, and not removed.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

from winch import App
from winch.errors import WinchError
from winch.integrations.django.admin_base import StoreAdmin
from winch.integrations.django.api import task_backends
from winch.integrations.django.discovery import discover
from winch.integrations.django.models import JobSchedule


class ScheduleForm(forms.Form):
    """A new schedule: a task of the project, when it runs, and its arguments."""

    name: Any = forms.CharField(max_length=200)
    task: Any = forms.ChoiceField()
    cron: Any = forms.CharField(required=False, help_text="Five fields, or a name such as @daily.")
    every: Any = forms.CharField(required=False, help_text="A spacing such as 15m, in place of cron.")
    tz: Any = forms.CharField(required=False, label="Time zone", help_text="UTC where it is empty.")
    args: Any = forms.CharField(required=False, initial="[]", label="Positional arguments (JSON)")
    kwargs: Any = forms.CharField(required=False, initial="{}", label="Named arguments (JSON)")

    def __init__(self, app: App, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["task"].choices = [(name, name) for name in sorted(app.tasks.names)]

    def clean_args(self) -> Any:
        return _json(self.cleaned_data["args"] or "[]", list)

    def clean_kwargs(self) -> Any:
        return _json(self.cleaned_data["kwargs"] or "{}", dict)


def _json(text: str, kind: type[Any]) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise forms.ValidationError(f"no JSON: {error}") from error
    if not isinstance(value, kind):
        raise forms.ValidationError(f"a JSON {'list' if kind is list else 'object'} is needed")
    return value


@admin.register(JobSchedule)
class JobScheduleAdmin(StoreAdmin):
    """The list of schedules, with a form to add one."""

    area = "schedules"
    verbs: ClassVar[tuple[str, ...]] = ("pause", "resume", "trigger", "remove")
    template = "admin/winch/jobschedule/schedules.html"

    def app(self, alias: str) -> App:
        """The app with the tasks of the project's code: a schedule names one of them."""
        app = super().app(alias)
        discover(app, alias, task_backends[alias].options)
        return app

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """All schedules, and the form for a new one."""
        alias = self.chosen(request)
        app = self.app(alias)
        form = ScheduleForm(app, request.POST or None) if self.may_operate(request) else None
        if request.method == "POST":
            if form is None:
                raise PermissionDenied
            if form.is_valid() and self._is_added(request, app, form):
                return self.back(alias)
        trouble, rows = None, []
        try:
            rows = app.schedules.list()
        except WinchError as error:
            trouble = str(error)
        return self.page(request, alias, rows=rows, form=form, trouble=trouble)

    def _is_added(self, request: HttpRequest, app: App, form: ScheduleForm) -> bool:
        given = form.cleaned_data
        timing = {key: given[key] for key in ("cron", "every", "tz") if given[key]}
        args = {"args": given["args"], "kwargs": given["kwargs"]}
        try:
            with app.audit.acting(request.user.get_username(), via="django"):
                app.schedules.add(given["name"], given["task"], args=args, **timing)
        except WinchError as error:
            form.add_error(None, str(error))
            return False
        messages.success(request, f"added schedule {given['name']}")
        return True
