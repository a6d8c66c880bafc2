"""The pytest plugin: `winch_world` and `winch_inline`, for the app that `winch_app` names.

    [tool.pytest.ini_options]
    winch_app = "shop.tasks:app"

pytest loads this in every run of every project that has Winch installed, so it imports nothing of the
engine before a fixture is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from winch.app import App
    from winch.testing._world import World

OPTION = "winch_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(OPTION, "the Winch app under test, as module:attribute, for Winch's fixtures")


@pytest.fixture
def winch_app(request: pytest.FixtureRequest) -> App:
    """The app that the ini option `winch_app = module:app` names. Override it to give another one."""
    from winch.app import App

    spec = str(request.config.getini(OPTION))
    module, colon, attribute = spec.partition(":")
    if not (module and colon and attribute):
        raise pytest.UsageError(
            f"set {OPTION} = module:app in pytest's configuration, or override the fixture winch_app; "
            f"got {spec!r}"
        )
    from importlib import import_module

    found = getattr(import_module(module), attribute, None)
    if not isinstance(found, App):
        raise pytest.UsageError(f"{OPTION} = {spec!r}: {attribute} is not a winch.App but {found!r}")
    return found


@pytest.fixture
def winch_world(winch_app: App) -> Iterator[World]:
    """The app in virtual time: see `winch.testing.virtual`."""
    from winch.testing import virtual

    with virtual(winch_app) as world:
        yield world


@pytest.fixture
def winch_inline(winch_app: App) -> Iterator[None]:
    """The app with jobs that run when they are enqueued: see `winch.testing.inline`."""
    from winch.testing import inline

    with inline(winch_app):
        yield
