"""Where settings come from, and which wins."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

import winch
from winch import App, ConfigError
from winch.engine.base.settings import Settings, load


def test_the_order_of_precedence(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.winch]\nurl = "memory://a"\nlease = "40s"\n')
    (tmp_path / "winch.toml").write_text('url = "memory://b"\npoll = "2s"\n')
    (tmp_path / "given.toml").write_text('url = "memory://c"\n')

    def url(**places: dict[str, str]) -> tuple[str, str]:
        loaded = load(
            code={"url": "memory://code"},
            cli=places.get("cli"),
            env=places.get("env", {}),
            folder=tmp_path,
            config=None,
        )
        return loaded.settings.url, loaded.origins["url"]

    assert url() == ("memory://code", "code")
    given = {"WINCH_CONFIG": str(tmp_path / "given.toml")}
    assert url(env=given) == ("memory://code", "code")
    assert load(env=given, folder=tmp_path).settings.url == "memory://c"
    assert load(env={}, folder=tmp_path).origins["url"] == "winch.toml"
    assert url(env={"WINCH_URL": "memory://d"}) == ("memory://d", "$WINCH_URL")
    assert url(env={"WINCH_URL": "memory://d"}, cli={"url": "memory://e"}) == (
        "memory://e",
        "command line",
    )
    loaded = load(env={}, folder=tmp_path)
    assert loaded.settings.lease == timedelta(seconds=40)
    assert loaded.settings.poll == timedelta(seconds=2)
    assert loaded.origins["grace"] == "default"


def test_a_secret_may_lie_in_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("memory://x\n")
    assert load(env={"WINCH_URL_FILE": str(secret)}, folder=tmp_path).settings.url == "memory://x"


def test_a_url_may_name_a_variable(tmp_path: Path) -> None:
    env = {"WINCH_URL": "env:DATABASE_URL", "DATABASE_URL": "memory://y"}
    assert load(env=env, folder=tmp_path).settings.url == "memory://y"
    with pytest.raises(ConfigError, match=r"\$OTHER, which is not set"):
        load(env={"WINCH_URL": "env:OTHER"}, folder=tmp_path)


@pytest.mark.parametrize(
    "text, message",
    [
        ('leese = "3s"', r"winch.toml: no setting named 'leese' \(did you mean 'lease'\?\)"),
        ("lease = 3", "winch.toml: lease must be a timedelta or text with a unit"),
        ('lease = "10s"\nheartbeat = "5s"', "at least three heartbeats, got 10s and 5s"),
        ('concurrency = "many"', "concurrency must be a whole number"),
        ("crash_limit = 0", "crash_limit must be from 1 to 50, got 0"),
        ("crash_limit = 51", "crash_limit must be from 1 to 50, got 51"),
        ('misfire_deadline = "9s"', "misfire_deadline must be at least 10s, got '9s'"),
        ('crash_window = "0s"', "crash_window must be from 1s to 3650d, got 0:00:00"),
        ('crash_window = "3651d"', "crash_window must be from 1s to 3650d, got 3651 days"),
        ('events = "ful"', r"did you mean 'full'\?"),
        ("lease =", "cannot be read"),
    ],
)
def test_a_wrong_setting_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "winch.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(env={}, folder=tmp_path)


@pytest.mark.parametrize(
    "name, hint",
    [
        ("WINCH_CONCURENCY", r" \(did you mean 'WINCH_CONCURRENCY'\?\)"),
        ("WINCH_URL_FIEL", r" \(did you mean 'WINCH_URL_FILE'\?\)"),
        ("WINCH_QQ", "; unset it"),
    ],
)
def test_an_unknown_variable_is_refused(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"variable {name} is not a setting of Winch{hint}"):
        load(env={name: "7"}, folder=tmp_path)


def test_variables_of_others_are_left_alone(tmp_path: Path) -> None:
    names = (
        *("WINCH_SERVICE_HOST", "WINCH_SERVICE_PORT", "WINCH_SERVICE_PORT_HTTP", "WINCH_PORT"),
        *("WINCH_PORT_8090_TCP", "WINCH_PORT_8090_TCP_ADDR", "WINCH_DASHBOARD_SERVICE_HOST"),
        *("WINCH_TEST_PG", "WINCH_BENCH_CACHE", "WINCH_LOG_STYLE", "WINCH_LISTEN_URL", "WINCHESTER"),
    )
    assert load(env=dict.fromkeys(names, "x"), folder=tmp_path).settings.concurrency == 10


def test_every_variable_that_the_code_reads_is_known(tmp_path: Path) -> None:
    root = Path(winch.__file__).parent
    text = "\n".join(path.read_text() for path in root.rglob("*.py"))
    found = set(re.findall(r'"(WINCH_[A-Z_]*[A-Z])"', text)) - {"WINCH_ACCESS", "WINCH_READ_ONLY"}
    assert {"WINCH_LISTEN_URL", "WINCH_METRICS_TOKEN"} <= found
    found -= {f"WINCH_{name.upper()}" for name in Settings.__struct_fields__} | {"WINCH_CONFIG"}
    assert load(env=dict.fromkeys(found, "x"), folder=tmp_path).settings == Settings()


def test_threads_that_ask_at_once_get_one_driver(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/winch.db")
    together = threading.Barrier(8)

    def ask(_: int) -> int:
        together.wait(10)
        return id(app.driver)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, range(8)))) == 1
    app.close()
