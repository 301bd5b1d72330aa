"""Encryption of secrets at rest with AES-256-GCM, and the key file.

A sealed value names its key and is bound to its context (the record it belongs to), so that a secret cannot be moved
to another record. There may be several keys: the newest one encrypts, all of them decrypt.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.errors import ConfigError
from aks_flex_rp import private_files
from aks_flex_rp.crypto.record_codes import RecordCodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence, Set
    from pathlib import Path

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


KEYS_VARIABLE = "AKS_FLEX_RP_KEYS"
KEY_BYTES = 32
SEAL_FORMAT = b"\x01"  # format version of a sealed value
ID_BYTES = 8
NONCE_BYTES = 12  # random: safe for four billion values per key
KEY_FILE_HEADER = (
    "# Keys of aks-flex-rp, newest first. The first key encrypts, all keys decrypt. Losing a key loses its data.\n"
)


class Sealer:
    def __init__(self, keys: Sequence[bytes], source: str) -> None:
        """Creates a sealer from keys, newest first. `source` describes their origin in messages."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - slow to import

        self._ciphers: dict[bytes, AESGCM] = {key_id(key): AESGCM(key) for key in keys}
        self._newest = key_id(keys[0])
        self._source = source
        self.codes = RecordCodes({key_id(key).hex(): key for key in keys})

    def __repr__(self) -> str:
        return f"Sealer({len(self._ciphers)} of {self._source})"

    def seal(self, data: bytes, context: str) -> bytes:
        start, nonce = SEAL_FORMAT + self._newest, os.urandom(NONCE_BYTES)
        return start + nonce + self._ciphers[self._newest].encrypt(nonce, data, start + context.encode())

    def open(self, data: bytes, context: str) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - slow to import

        start, rest = _split(data)
        cipher = self._ciphers.get(start[len(SEAL_FORMAT) :])
        if cipher is None or start[: len(SEAL_FORMAT)] != SEAL_FORMAT:
            raise self._unopened(context, "was encrypted with a key that is not available")
        try:
            return cipher.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], start + context.encode())
        except (InvalidTag, ValueError) as error:
            raise self._unopened(context, "is corrupt, or belongs to another record") from error

    def is_current(self, data: bytes) -> bool:
        """Returns whether the newest key encrypted it.

        Older values must be re-encrypted before their key is removed.
        """
        return _split(data)[0] == SEAL_FORMAT + self._newest

    def _unopened(self, context: str, why: str) -> ConfigError:
        return ConfigError(
            "decryption-failed",
            f"Cannot decrypt the stored {context} with the keys from {self._source}: the value {why}.",
            "Restore the missing key as an additional line of the key file, or write the record again.",
        )


def _split(data: bytes) -> tuple[bytes, bytes]:
    end = len(SEAL_FORMAT) + ID_BYTES
    return data[:end], data[end:]


def key_id(key: bytes) -> bytes:
    """Returns the ID of a key, which does not reveal the key."""
    return hashlib.sha256(b"aks-flex-rp key " + key).digest()[:ID_BYTES]


def has_keys(file: Path, env: Mapping[str, str]) -> bool:
    return file.exists() or bool(list_keys(file, env))


@dataclass(frozen=True)
class KeyInfo:
    """A key as it is written."""

    source: str  # the file, or the variable
    number: int  # of its line there
    line: str = field(repr=False)

    @property
    def id(self) -> str:
        """Identifies the key without revealing it."""
        try:
            return key_id(self.key).hex()
        except ConfigError:
            return "invalid"  # the service reports the error and does not start

    @property
    def key(self) -> bytes:
        """Parses the key. Messages never contain the line."""
        try:
            key = base64.b64decode(self.line, altchars=b"-_", validate=True)
        except (ValueError, binascii.Error):
            key = b""
        if len(key) == KEY_BYTES:
            return key
        raise ConfigError(
            "encryption-keys-invalid",
            f"Line {self.number} of {self.source} is not a valid key: it must be {KEY_BYTES} bytes in URL-safe "
            "base64.",
            "Restore the line from a backup. To create a new key: `openssl rand -base64 32 | tr +/ -_`.",
        )


def list_keys(file: Path, env: Mapping[str, str]) -> list[KeyInfo]:
    """Lists the keys of the environment, then those of the file, each newest first. Creates none."""
    texts = {KEYS_VARIABLE: env.get(KEYS_VARIABLE, "").replace(",", "\n")}
    if file.exists():
        texts[str(file)] = private_files.read(file).decode(errors="replace")
    return [
        KeyInfo(source, number, key)
        for source, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if (key := line.partition("#")[0].strip())
    ]


def open_sealer_keys(file: Path, env: Mapping[str, str]) -> Sealer:
    """Loads the keys. Creates the file if there are none."""
    if not has_keys(file, env):
        private_files.create(file, _text([_new_line()]))
    keys = _valid_keys(file, env)
    sources = dict.fromkeys(each.source for each in keys)
    return Sealer([each.key for each in keys], " and ".join(sources))


def _valid_keys(file: Path, env: Mapping[str, str]) -> list[KeyInfo]:
    keys = list_keys(file, env)
    if file.exists() and str(file) not in {each.source for each in keys}:
        raise ConfigError(
            "encryption-keys-invalid", f"{file} contains no key.", "Restore the file from a backup, or delete it."
        )
    return [each for each in keys if each.key]


def _new_line() -> str:
    return base64.urlsafe_b64encode(os.urandom(KEY_BYTES)).decode()


def _text(lines: Iterable[str]) -> bytes:
    return (KEY_FILE_HEADER + "".join(f"{line}\n" for line in lines)).encode()


def create_key(file: Path, env: Mapping[str, str]) -> str:
    """Creates a key, which encrypts after the next start, and returns its ID. Existing keys still decrypt."""
    if env.get(KEYS_VARIABLE):
        raise ConfigError(
            "encryption-keys-in-environment",
            f"The newest key is the first one in {KEYS_VARIABLE}, which takes precedence over the key file.",
            "Prepend a new key and a comma to its value: `openssl rand -base64 32 | tr +/ -_`.",
        )
    private_files.write(file, _text([_new_line(), *(each.line for each in _valid_keys(file, env))]))
    keep_owner(file)
    return list_keys(file, env)[0].id


def remove_keys(file: Path, ids: Set[str]) -> None:
    private_files.write(file, _text(each.line for each in list_keys(file, {}) if each.id not in ids))
    keep_owner(file)


def keep_owner(file: Path) -> None:
    """Gives a file that root wrote the owner of its directory."""
    if os.geteuid() == 0:
        owner = file.parent.stat()
        os.chown(file, owner.st_uid, owner.st_gid)


def sealing_key_id(data: bytes) -> str:
    """Returns the ID of the key that encrypted the value."""
    return data[len(SEAL_FORMAT) : len(SEAL_FORMAT) + ID_BYTES].hex()
