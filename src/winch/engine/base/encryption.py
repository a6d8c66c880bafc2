"""Encryption of arguments, results and checkpoints with keys that only the application has.

Every text is sealed by AES-256-GCM under the keyring's current key, with a nonce of its own. What it
belongs to (job id, task, which field) is part of what is authenticated: a text moved to another job, to
another task or to another field of the same job does not open. The id of the key is stored with it, so
old keys go on reading what they wrote while new texts are written with the new one.

Errors, tracebacks, logs, progress, tags and headers are not encrypted: people look for jobs by them.
Arguments that a task declares for `search` are found by a keyed hash of their values.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from winch.core import envelope
from winch.core.envelope import Envelope
from winch.core.errors import ConfigError, InvalidPayload, MissingKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from winch.core.job import JobRecord

Field = Literal["args", "result", "checkpoint", "steps", "secret"]

KEY_BYTES = 32
NONCE_BYTES = 12
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Keyring:
    """The encryption keys of one application: `current` encrypts, and all of them decrypt.

        Keyring({"k2": os.urandom(32), "k1": old}, current="k2")

    `current` may be left out when there is only one key.
    """

    def __init__(self, keys: Mapping[str, bytes], *, current: str | None = None) -> None:
        if not keys:
            raise ConfigError("keys must hold at least one key")
        for name, key in keys.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ConfigError(
                    "a key's name must be 1 to 64 letters, digits, dots, dashes or underscores, "
                    f"got {name!r}"
                )
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                # Never the value itself: this message ends up in a log.
                got = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
                raise ConfigError(f"key {name!r} must be {KEY_BYTES} bytes, got {got}")
        if current is None and len(keys) > 1:
            raise ConfigError(f"choose the key that encrypts: current= one of {', '.join(keys)}")
        self.current: str = current if current is not None else next(iter(keys))
        if self.current not in keys:
            raise ConfigError(
                f"the current key {self.current!r} is not among the keys {', '.join(keys)}"
            )
        cipher = _cipher()
        self._ciphers: dict[str, AESGCM] = {name: cipher(key) for name, key in keys.items()}
        # Another key for another purpose: the use of one reveals nothing about the other.
        self._blinds: dict[str, bytes] = {
            name: hmac.digest(key, b"winch search", "sha256") for name, key in keys.items()
        }

    @classmethod
    def parse(cls, text: str) -> Keyring:
        """A keyring from `k2:base64,k1:base64`, separated by commas or lines. The first key is the
        current one.
        """
        keys: dict[str, bytes] = {}
        for part in re.split(r"[,\s]+", text.strip()):
            name, colon, coded = part.partition(":")
            if not colon:
                raise ConfigError("keys must be written as name:base64,name:base64")
            if name in keys:
                raise ConfigError(f"the key {name!r} is named twice")
            keys[name] = _decoded(coded, f"key {name!r}")
        return cls(keys, current=next(iter(keys)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the keys."""
        return tuple(self._ciphers)

    def seal(self, text: str, *, job: str, task: str, field: Field) -> str:
        """Encrypt the text for this field of this job."""
        nonce = os.urandom(NONCE_BYTES)
        data = self._ciphers[self.current].encrypt(nonce, text.encode(), _bound_to(job, task, field))
        sealed = Envelope(
            "aesgcm", self.current, base64.b64encode(nonce).decode(), base64.b64encode(data).decode()
        )
        return msgspec.json.encode(sealed).decode()

    def blind(self, term: str, name: str | None = None) -> str:
        """A search term in a form that only the holder of the key can compute."""
        digest = hmac.digest(self._blinds[name or self.current], term.encode(), "sha256")
        return base64.urlsafe_b64encode(digest[: len(term) * 3 // 4]).decode()

    def _open(self, found: Envelope, *, job: str, task: str, field: Field) -> str:
        from cryptography.exceptions import InvalidTag

        nonce, data = _decoded(found.nonce, "nonce"), _decoded(found.data, "data")
        try:
            opened = self._ciphers[found.key].decrypt(nonce, data, _bound_to(job, task, field))
            return opened.decode()
        except (InvalidTag, ValueError) as error:
            raise InvalidPayload(
                f"the encrypted {field} of job {job} cannot be opened with key {found.key!r}: "
                "it is damaged, or it was copied from another job or field"
            ) from error

    def __repr__(self) -> str:
        return f"<Keyring {', '.join(self.names)}; current {self.current}>"


def seal(keys: Keyring | None, text: str, *, job: str, task: str, field: Field) -> str:
    """The text as it is stored: encrypted where there are keys."""
    return text if keys is None else keys.seal(text, job=job, task=task, field=field)


def unseal(keys: Keyring | None, text: str, *, job: str, task: str, field: Field) -> str:
    """A stored text as it was given to `seal`; one that was never encrypted comes back as it is.

    Raises MissingKey when its key is not here, InvalidPayload when it is damaged or not this job's.
    """
    found = envelope.read(text)
    if found is None:
        return text
    if keys is None or found.key not in keys.names:
        raise MissingKey(found.key, () if keys is None else keys.names)
    return keys._open(found, job=job, task=task, field=field)


def revealed(keys: Keyring | None, record: JobRecord) -> JobRecord:
    """The record with all that these keys open opened; the rest stays as it is."""

    def opened(text: str | None, field: Field) -> str | None:
        if text is None:
            return None
        try:
            return unseal(keys, text, job=record.id, task=record.task, field=field)
        except (MissingKey, InvalidPayload):
            return text

    return msgspec.structs.replace(
        record,
        args=opened(record.args, "args"),
        result=opened(record.result, "result"),
        checkpoint=opened(record.checkpoint, "checkpoint"),
    )


def _bound_to(job: str, task: str, field: Field) -> bytes:
    # None of the parts can hold a NUL, so no two different triples give the same bytes.
    return f"winch\0{job}\0{task}\0{field}".encode()


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError) as error:
        if what.startswith("key"):
            raise ConfigError(f"{what} is not valid base64") from error
        raise InvalidPayload(f"the {what} of an encrypted text is not valid base64") from error


def _cipher() -> type[AESGCM]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ConfigError(
            "encryption needs the cryptography package: pip install 'winch-jobs[encryption]'"
        ) from error
    return AESGCM
