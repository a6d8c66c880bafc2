"""What the pages of Django's admin about the store have in common.

Django holds no row of jobs or schedules, so its pages to add, change and delete have no address here. A
page is a list, and a form for each action.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from winch import App
from winch.errors import WinchError
from winch.integrations.django.apps import backends
from winch.integrations.django.stores import app_of


class StoreAdmin(admin.ModelAdmin):
    """A list of what is in the store of one entry of TASKS, and actions on one line of it.

    `winch.view_NAME` may look, `winch.operate_NAME` may act. The audit log has each action under the
    name of the Django user, with `via` django."""

    area: ClassVar[str]
    """The attribute of the app that holds what the page shows."""
    verbs: ClassVar[tuple[str, ...]]
    """The actions: methods of the area, which take the id or name of one line."""
    template: ClassVar[str]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def may_operate(self, request: HttpRequest) -> bool:
        """Whether this user may act."""
        return bool(request.user.has_perm(f"winch.operate_{self.opts.model_name}"))

    def get_urls(self) -> list[Any]:
        name, protected = f"winch_{self.opts.model_name}", self.admin_site.admin_view
        return [
            path("", protected(self.changelist_view), name=f"{name}_changelist"),
            path("<str:alias>/", protected(self.act_on_many), name=f"{name}_act_on_many"),
            path("<str:alias>/<path:line>/<str:verb>", protected(self.act), name=f"{name}_act"),
        ]

    def app(self, alias: str) -> App:
        """The app behind an entry of TASKS that is Winch's."""
        if alias not in [backend.alias for backend in backends()]:
            raise Http404(f"TASKS[{alias!r}] is not Winch's")
        return app_of(alias)

    def chosen(self, request: HttpRequest) -> str:
        """The entry of TASKS whose store the page shows."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        first = next((backend.alias for backend in backends()), "default")
        return str(request.GET.get("backend", first))

    def page(self, request: HttpRequest, alias: str, **context: Any) -> HttpResponse:
        """The list as a page of the admin."""
        common = {
            **self.admin_site.each_context(request),
            "title": self.opts.verbose_name_plural.capitalize(),
            "opts": self.opts,
            "alias": alias,
            "aliases": [backend.alias for backend in backends()],
            "may_operate": self.may_operate(request),
        }
        return TemplateResponse(request, self.template, {**common, **context})

    def act(self, request: HttpRequest, alias: str, line: str, verb: str) -> HttpResponse:
        """Do one action to one line."""
        return self._act(request, alias, [line], verb)

    def act_on_many(self, request: HttpRequest, alias: str) -> HttpResponse:
        """Do the chosen action to the selected lines."""
        return self._act(request, alias, request.POST.getlist("line"), request.POST.get("verb", ""))

    def _act(self, request: HttpRequest, alias: str, lines: list[str], verb: str) -> HttpResponse:
        if request.method != "POST" or verb not in self.verbs:
            return HttpResponseNotAllowed(["POST"])
        if not self.may_operate(request):
            raise PermissionDenied
        app = self.app(alias)
        done: list[str] = []
        for line in lines:
            try:
                with app.audit.acting(request.user.get_username(), via="django"):
                    getattr(getattr(app, self.area), verb)(line)
                done.append(line)
            except WinchError as error:
                messages.error(request, str(error))
        if done:
            one, many = self.opts.verbose_name, self.opts.verbose_name_plural
            what = f"{one} {done[0]}" if len(done) == 1 else f"{len(done)} {many}"
            messages.success(request, f"{verb}: {what}")
        return self.back(alias)

    def back(self, alias: str) -> HttpResponse:
        """Return to the list."""
        there = reverse(f"admin:winch_{self.opts.model_name}_changelist")
        return redirect(f"{there}?backend={alias}")
