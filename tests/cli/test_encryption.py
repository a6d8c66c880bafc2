"""Encrypted jobs on the command line: shown as such, opened only on request and with the keys."""

from __future__ import annotations

import base64

from tests.cli.command import Command
from winch import App

KEY = f"k1:{base64.b64encode(b'1' * 32).decode()}"
OTHER = f"k2:{base64.b64encode(b'2' * 32).decode()}"


def test_encrypted_arguments_are_shown_only_with_reveal_and_the_keys(winch: Command, app: App) -> None:
    winch.shop()
    stored = winch("enqueue", "shop.add", "--args", '{"a": 40771}', "-A", "shop:app", WINCH_KEYS=KEY)
    job_id = stored.out.strip()
    assert stored.code == 0, stored.err
    for args in (["list"], ["show", job_id]):
        for extra, env in (
            ([], {"WINCH_KEYS": KEY}),
            (["--reveal"], {}),
            (["--reveal"], {"WINCH_KEYS": OTHER}),
        ):
            answer = winch("jobs", *args, *extra, **env)
            assert answer.code == 0, answer.err
            assert "<encrypted>" in answer.out
            assert "40771" not in answer.out
            assert "aesgcm" not in answer.out
        assert "40771" in winch("jobs", *args, "--reveal", WINCH_KEYS=KEY).out
    assert winch("jobs", "show", job_id, "--json").json["args"] == "<encrypted>"
    assert winch("jobs", "show", job_id, "--json", "--reveal", WINCH_KEYS=KEY).json["args"] == {
        "a": 40771
    }


def test_a_worker_without_the_key_leaves_the_job_and_one_with_it_runs_it(
    winch: Command, app: App
) -> None:
    winch.shop()
    job_id = winch(
        "enqueue", "shop.add", "--args", '{"a": 40771}', "-A", "shop:app", WINCH_KEYS=KEY
    ).out.strip()
    idle = winch("worker", "-A", "shop:app", "--burst", WINCH_KEYS=OTHER)
    assert idle.code == 0, idle.err
    assert "encrypted with the key 'k1'" in winch("why", job_id).out
    assert winch("jobs", "show", job_id, "--json").json["attempt"] == 0
    assert winch("jobs", "retry", job_id).code == 0
    assert winch("worker", "-A", "shop:app", "--burst", WINCH_KEYS=KEY).code == 0
    shown = winch("jobs", "show", job_id, "--json", "--reveal", WINCH_KEYS=KEY).json
    assert (shown["state"], shown["result"]) == ("completed", 40771)


def test_config_names_the_keys_and_never_shows_one(winch: Command) -> None:
    answer = winch("config", "--origin", WINCH_KEYS=f"{KEY},{OTHER}")
    assert "<Keyring k1, k2; current k1>" in answer.out
    for key in (KEY, OTHER):
        assert key.partition(":")[2] not in answer.out
    assert "Keyring" in winch("config", "--json", WINCH_KEYS=KEY).json["keys"]
