"""Which functions a worker may run: the tasks of the project's code, found by name.

A job holds the name of its task, and a name from the store must never import what it likes. A worker
imports `tasks` of every installed app (a module or a package of modules) and the modules that
`OPTIONS["modules"]` names, and nothing else; from what is imported it takes instances of Django's Task.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from winch import App
from winch import Task as WinchJobTask
from winch.errors import ConfigError
from winch.integrations.django.api import Task
from winch.integrations.django.decorators import SCHEDULES
from winch.integrations.django.handlers import Announcer, register

TASKS = "tasks"
_prepared: WeakSet[App] = WeakSet()
_discovered: WeakKeyDictionary[App, set[str]] = WeakKeyDictionary()
_preparing = threading.Lock()
# One thread at a time, also while it imports: the others need all of the tasks.
_discovering = threading.RLock()


def prepare(app: App, alias: str, options: Mapping[str, Any]) -> None:
    """Let the app find the project's tasks by name, and announce how their jobs end."""
    with _preparing:
        if app not in _prepared:
            _prepare(app, alias, options)
            _prepared.add(app)


def _prepare(app: App, alias: str, options: Mapping[str, Any]) -> None:
    modules = tuple(options.get("modules", ()))

    def resolve(name: str) -> WinchJobTask[Any, Any] | None:
        found = find(name, modules)
        return None if found is None else register(app, found, alias, options)

    app.tasks.resolve_with(resolve)
    app.command = "manage.py winch"
    Announcer(app, alias)


def find(name: str, modules: Sequence[str] = ()) -> Any:
    """The task of the project's code with this module path; None where there is none or its module is
    not allowed."""
    module_name, _, attribute = name.rpartition(".")
    if module_name not in sys.modules and not is_allowed(module_name, modules):
        return None
    try:
        # Also a module that is there: another thread may still be importing it.
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not
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
    with _discovering:
        if alias not in _discovered.setdefault(app, set()):
            _discover(app, alias, options)
            _discovered[app].add(alias)  # last: a module that cannot be imported fails the next call too


def _discover(app: App, alias: str, options: Mapping[str, Any]) -> None:
    autodiscover_modules(TASKS)
    for config in _installed():
        name = f"{config.name}.{TASKS}"
        path = getattr(sys.modules.get(name), "__path__", ())
        for found in pkgutil.walk_packages(path, f"{name}."):
            importlib.import_module(found.name)
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
