"""`winch webhooks`."""

from __future__ import annotations

import base64

from tests.cli.command import Command

SECRET = "whsec_" + base64.b64encode(b"CANARY-0123456789-CANARY-0123456").decode()


def test_an_endpoint_from_the_command_line(winch: Command) -> None:
    winch.shop()
    path = winch.folder / "shop.py"
    path.write_text(path.read_text() + "\napp.webhooks.setup()\n")
    url = "https://example.com/h?token=abcdef"
    made = winch("webhooks", "subscribe", url, "--event", "order.*", "--tenant", "acme", "--json").json
    endpoint, secret = made["id"], made["secret"]
    assert secret.startswith("whsec_")
    assert "abcdef" not in made["url"]
    [listed] = winch("webhooks", "list", "--tenant", "acme", "--json").json["endpoints"]
    assert (listed["id"], listed["events"], "secret" in listed) == (endpoint, ["order.*"], False)
    assert winch("webhooks", "list", "--tenant", "other", "--json").json == {"endpoints": []}
    assert "acme" in winch("webhooks", "list").out
    plain = winch("webhooks", "subscribe", "https://example.com", "--event", "*")
    second, new = plain.out.split()
    assert (second[:3], new[:6]) == ("ep_", "whsec_")
    assert "not shown again" in plain.err

    rotated = winch("webhooks", "rotate", endpoint, "--overlap", "1h")
    assert (rotated.code, rotated.out[:6]) == (0, "whsec_")
    assert "2 sign" in winch("webhooks", "show", endpoint).out
    assert winch("webhooks", "disable", endpoint, "--reason", "asked").code == 0
    assert "disabled: asked" in winch("webhooks", "list").out
    replay = ("webhooks", "replay", endpoint, "--from", "2026-01-01", "-A", "shop:app")
    assert winch(*replay, "--dry-run").out.strip() == "0 events to send"
    assert winch("webhooks", "enable", endpoint).code == 0
    assert winch(*replay, "--json").json["enqueued"] == 0
    wrong = winch("webhooks", "replay", endpoint, "--from", "soon", "-A", "shop:app")
    assert (wrong.code, "--from must be a time" in wrong.err) == (2, True)
    refused = winch("webhooks", "remove", endpoint)
    assert (refused.code, "pass --yes" in refused.err) == (2, True)
    assert winch("webhooks", "remove", endpoint, "--yes").code == 0
    gone = winch("webhooks", "show", endpoint)
    assert (gone.code, f"no webhook endpoint '{endpoint}'" in gone.err) == (1, True)
    audit = winch("audit", "--json").json["lines"]
    assert [line["action"] for line in audit][:4] == [
        "remove webhook",
        "enable webhook",
        "disable webhook",
        "rotate webhook secret",
    ]
    assert all(one not in winch("audit", "--json").out for one in (secret, new, "abcdef"))


def test_a_mistake_is_one_line(winch: Command) -> None:
    winch.shop()
    inside = winch("webhooks", "subscribe", "http://10.0.0.1/x", "--event", "e")
    assert (inside.code, "must begin with https://" in inside.err) == (2, True)
