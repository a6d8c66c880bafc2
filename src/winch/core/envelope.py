"""What an encrypted text looks like in the store: still JSON, with the name of its key.

    {"winch": "aesgcm", "key": "k2", "nonce": "…", "data": "…"}

Only its shape is known here, so that pages and commands recognise one without a key. How it is made and
opened is in winch.engine.base.encryption.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MARK = "<encrypted>"


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One encrypted text: AES-256-GCM under the named key; `nonce` and `data` are base64."""

    winch: Literal["aesgcm"]
    key: str
    nonce: str
    data: str


_decoder = msgspec.json.Decoder(Envelope)


def read(text: str | None) -> Envelope | None:
    """The envelope that this stored text is, or None for a text that is not encrypted."""
    # Almost every text that is read is none, so most are recognised without being parsed.
    if text is None or '"aesgcm"' not in text[:200]:
        return None
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
