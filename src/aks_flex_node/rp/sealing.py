"""What the store keeps secret is encrypted before it gets there.

AES-256-GCM. What is sealed names the key that it was sealed with, and is bound to its context (the record that it
belongs to), so that nobody who can write to the database can put one record's secret into another. There may be
several keys: the newest seals, and all of them open.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from typing import TYPE_CHECKING

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp import private_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VARIABLE = "AKS_FLEX_RP_KEYS"
KEY_BYTES = 32
FORM = b"\x01"  # says how the rest is to be read, should it ever be another way
ID_BYTES = 8
NONCE_BYTES = 12  # random: safe for four thousand million seals by one key
HEADER = "# Keys of aks-flex-rp, the newest first: it seals, and all of them open. Losing one loses what it sealed.\n"


class Sealer:
    def __init__(self, keys: Sequence[bytes], source: str) -> None:
        """The newest key first; `source` is what people are told about where the keys are from."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - slow to import

        self._ciphers: dict[bytes, AESGCM] = {key_id(key): AESGCM(key) for key in keys}
        self._newest = key_id(keys[0])
        self._source = source

    def __repr__(self) -> str:
        return f"Sealer({len(self._ciphers)} of {self._source})"

    def seal(self, data: bytes, context: str) -> bytes:
        start, nonce = FORM + self._newest, os.urandom(NONCE_BYTES)
        return start + nonce + self._ciphers[self._newest].encrypt(nonce, data, start + context.encode())

    def open(self, data: bytes, context: str) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - slow to import

        start, rest = _split(data)
        cipher = self._ciphers.get(start[len(FORM) :])
        if cipher is None or start[: len(FORM)] != FORM:
            raise self._unopened(context, "was sealed with a key that is not there")
        try:
            return cipher.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], start + context.encode())
        except (InvalidTag, ValueError) as error:
            raise self._unopened(context, "is damaged, or belongs to another record") from error

    def is_current(self, data: bytes) -> bool:
        """Whether the newest key sealed it; what an older one sealed is to be sealed anew before that key goes."""
        return _split(data)[0] == FORM + self._newest

    def _unopened(self, context: str, why: str) -> ConfigError:
        return ConfigError(
            "seal-unopened",
            f"What is stored for {context} cannot be opened with the keys from {self._source}: it {why}.",
            "Put back the key that it was sealed with, as one more line; or write the record anew.",
        )


def _split(data: bytes) -> tuple[bytes, bytes]:
    end = len(FORM) + ID_BYTES
    return data[:end], data[end:]


def key_id(key: bytes) -> bytes:
    """By which a key is known without being shown."""
    return hashlib.sha256(b"aks-flex-rp key " + key).digest()[:ID_BYTES]


def load_keys(file: Path | None, env: Mapping[str, str]) -> Sealer:
    """The keys of the environment, then those of the file, which is made when there are none at all."""
    given = _parsed(env.get(VARIABLE, "").replace(",", "\n"), VARIABLE)
    if file is None and not given:
        raise ConfigError(
            "keys-missing", "There is no key to encrypt secrets with.", f"Name a file for it, or set {VARIABLE}."
        )
    if file is None:
        return Sealer(given, VARIABLE)
    if not given and not file.exists():
        private_files.create(file, _text([_new_key()]))
    kept = _read(file) if file.exists() else []
    sources = ([VARIABLE] if given else []) + ([str(file)] if kept else [])
    return Sealer([*given, *kept], " and ".join(sources))


def add_key(file: Path) -> None:
    """A new key, which seals from now on; what is there still opens."""
    private_files.write(file, _text([_new_key(), *(_read(file) if file.exists() else [])]))


def _new_key() -> bytes:
    return os.urandom(KEY_BYTES)


def _text(keys: Sequence[bytes]) -> bytes:
    lines = [base64.urlsafe_b64encode(key) + b"\n" for key in keys]
    return HEADER.encode() + b"".join(lines)


def _read(file: Path) -> list[bytes]:
    keys = _parsed(private_files.read(file).decode(errors="replace"), str(file))
    if not keys:
        raise ConfigError(
            "keys-invalid", f"There is no key in {file}.", "Put back the file from a backup, or remove it."
        )
    return keys


def _parsed(text: str, source: str) -> list[bytes]:
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [_key(line, number, source) for number, line in enumerate(lines, start=1) if line]


def _key(text: str, number: int, source: str) -> bytes:
    """A line's key. No message shows what the line says."""
    try:
        key = base64.b64decode(text, altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) == KEY_BYTES:
        return key
    raise ConfigError(
        "keys-invalid",
        f"Line {number} of {source} is no key: it must be {KEY_BYTES} bytes in URL-safe base64.",
        "Put back the line from a backup. To begin anew: `openssl rand -base64 32 | tr +/ -_`.",
    )
