"""Which functions a worker may run: the tasks of the project's code, found by name.

A job holds the name of its task, and a name from the store must never import what it likes. A worker
imports `tasks` of every installed app (a module or a package of modules) and the modules that
`OPTIONS["modules"]` names, and nothing else; from what is imported it takes instances of Django's Task.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from winch import App
from winch import Task as WinchJobTask
from winch.errors import ConfigError
from winch.integrations.django.api import Task
from winch.integrations.django.decorators import SCHEDULES
from winch.integrations.django.handlers import Announcer, register

TASKS = "tasks"
_discovered: WeakSet[App] = WeakSet()


def prepare(app: App, alias: str, options: Mapping[str, Any]) -> None:
    """Let the app find the project's tasks by name."""
    modules = tuple(options.get("modules", ()))

    def resolve(name: str) -> WinchJobTask[Any, Any] | None:
        found = find(name, modules)
        return None if found is None else register(app, found, alias, options)

    app.tasks.resolve_with(resolve)


def find(name: str, modules: Sequence[str] = ()) -> Any:
    """The task of the project's code with this module path; None where there is none or its module is
    not allowed."""
    module_name, _, attribute = name.rpartition(".")
    module = sys.modules.get(module_name)
    if module is None and is_allowed(module_name, modules):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError:
            return None
    found = getattr(module, attribute, None)
    if not isinstance(found, Task) or found.module_path != name:
        return None
    return found


def is_allowed(module: str, modules: Sequence[str] = ()) -> bool:
    """Whether a job may have this module imported."""
    homes = [*modules, *(f"{config.name}.{TASKS}" for config in _installed())]
    return any(module == home or module.startswith(f"{home}.") for home in homes)


def _installed() -> Iterator[Any]:
    return iter(apps.get_app_configs()) if apps.ready else iter(())


def discover(app: App, alias: str, options: Mapping[str, Any]) -> None:
    """Import the modules of tasks, and register every task in them: what a worker does at its start."""
    if app in _discovered:
        return
    _discovered.add(app)
    autodiscover_modules(TASKS)
    for config in _installed():
        package = sys.modules.get(f"{config.name}.{TASKS}")
        for found in pkgutil.iter_modules(getattr(package, "__path__", ())):
            importlib.import_module(f"{config.name}.{TASKS}.{found.name}")
    modules = tuple(options.get("modules", ()))
    for name in modules:
        importlib.import_module(name)
    for task in loaded_tasks(modules):
        register(app, task, alias, options)
    for name, entries in SCHEDULES.items():
        if name in app.tasks:
            for entry in entries:
                if entry.task.backend == alias:
                    _declare(app, app.tasks.get(name), entry)
    Announcer(app, alias)


def loaded_tasks(modules: Sequence[str] = ()) -> list[Any]:
    """The tasks in the allowed modules that are imported."""
    found: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        if module is not None and is_allowed(name, modules):
            for value in list(vars(module).values()):
                if isinstance(value, Task) and find(value.module_path, modules) is not None:
                    found.setdefault(value.module_path, find(value.module_path, modules))
    return [found[name] for name in sorted(found)]


def _declare(app: App, task: WinchJobTask[Any, Any], entry: Any) -> None:
    timing = dict(entry.timing)
    name = timing.pop("name", None) or task.name
    args = {"args": list(entry.args), "kwargs": dict(entry.kwargs)}
    try:
        app.schedule(timing.pop("cron"), name=name, args=args, **timing)(task)
    except ConfigError as error:
        if "two schedules are named" not in str(error):
            raise
