"""Find the application object named on the command line."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from winch.app import App
from winch.core.errors import ConfigError, did_you_mean
from winch.engine.base.settings import load


def load_app(spec: str | None, config: str | None = None) -> App:
    """The App at 'module:attribute', or the one that 'module:function()' returns; raises ConfigError
    with what to do when it cannot be had."""
    spec = spec or load(config=config).settings.app
    if spec is None:
        raise ConfigError("no app given: pass -A module:app, set $WINCH_APP, or set app in [tool.winch]")
    module_name, colon, attribute = spec.partition(":")
    is_factory = attribute.endswith("()")
    attribute = attribute.removesuffix("()") if colon else "app"
    folder = str(Path.cwd())
    if folder not in sys.path:  # an installed command does not look in the current folder by itself
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise ConfigError(f"importing {module_name!r} failed: {error}") from error
        raise ConfigError(
            f"no module named {module_name!r} in {folder} or on the path; give -A module:app"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"importing {module_name!r} failed: {type(error).__name__}: {error}"
        ) from error
    found: object = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            hint = did_you_mean(name, [n for n, v in vars(module).items() if isinstance(v, App)])
            raise ConfigError(f"module {module_name!r} has no {attribute!r}{hint}")
        found = getattr(found, name)
    if is_factory:
        found = _made(found, spec)
    elif callable(found) and not isinstance(found, App):
        raise ConfigError(f"{spec!r} is a function; to call it for the app, give -A '{spec}()'")
    if not isinstance(found, App):
        raise ConfigError(f"{spec!r} is a {type(found).__name__}, not a winch.App")
    return found


def _made(factory: object, spec: str) -> object:
    """What the factory returns."""
    if not callable(factory):
        raise ConfigError(f"{spec!r} names a {type(factory).__name__}, which cannot be called")
    try:
        return factory()
    except Exception as error:
        raise ConfigError(f"{spec} failed: {type(error).__name__}: {error}") from error
