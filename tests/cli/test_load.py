"""The application that `-A` names: an attribute, or what a factory returns."""

from __future__ import annotations

from pathlib import Path

import pytest

from winch import ConfigError
from winch.cli.shared.load import load_app

SHOP = """
from winch import App

class Box:
    app = App("memory://")

def make_app():
    app = App("memory://")
    app.task(name="made")(lambda: None)
    return app

def broken():
    raise RuntimeError("no settings")

number = 7
"""


@pytest.fixture
def _shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "factory_shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("_shop")
def test_a_factory_is_called_for_the_app() -> None:
    assert load_app("factory_shop:make_app()").tasks.names == ("made",)
    assert load_app("factory_shop:Box.app").tasks.names == ()


@pytest.mark.usefixtures("_shop")
@pytest.mark.parametrize(
    "spec, message",
    [
        ("factory_shop:make_app", r"to call it for the app, give -A 'factory_shop:make_app\(\)'"),
        ("factory_shop:broken()", "failed: RuntimeError: no settings"),
        ("factory_shop:number()", "names a int, which cannot be called"),
        ("factory_shop:number", "is a int, not a winch.App"),
    ],
)
def test_a_wrong_app_is_refused_with_the_remedy(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_app(spec)
