"""Masking: what is hidden, and that no text makes it slow."""

from __future__ import annotations

import time

import pytest

from winch.core.values.redact import mask, mask_text


@pytest.mark.parametrize(
    "text",
    [
        "postgres://ada:CANARY@db/x",
        "password=CANARY",
        '"api_key": "CANARY"',
        "Authorization: Bearer CANARY",
        "db-password = 'CANARY'",
    ],
)
def test_secrets_are_hidden_in_texts(text: str) -> None:
    assert "CANARY" not in mask_text(text)
    assert "***" in mask_text(text)


def test_secrets_are_hidden_in_data() -> None:
    assert mask({"Password": "x", "n": [{"token": 1}], "ok": "fine"}) == {
        "Password": "***",
        "n": [{"token": "***"}],
        "ok": "fine",
    }


@pytest.mark.parametrize("part", ["x", "a-", "a+", "a://", 'token="', "password=", "a:b@", "key "])
def test_no_text_makes_it_slow(part: str) -> None:
    text = part * (250_000 // len(part))
    began = time.process_time()
    mask_text(text)
    # A pattern that looks at the rest once for each letter takes minutes for this.
    assert time.process_time() - began < 5.0
