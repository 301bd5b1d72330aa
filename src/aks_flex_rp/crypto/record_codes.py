"""Authentication codes of database rows: HMAC-SHA256 over the identity and the content of a row.

A code names its key. There may be several keys: the newest one signs, all of them verify. The keys of the codes are
derived from the encryption keys, so that both are rotated together.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from aks_flex_rp.text_enum import TextEnum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LENGTH_BYTES = 8
PIECE_BYTES = 2047  # of more, hashlib releases Python's lock, and then waits for it longer than it hashes
DIGEST_LENGTH = 16  # hexadecimal digits
DERIVATION = b"aks-flex-rp authentication of records"


class CodeState(TextEnum):
    VALID = "valid"
    MISSING = "missing"
    WRONG = "wrong"
    UNKNOWN_KEY = "unknownKey"  # made with a key that is not present: not a sign of an attack by itself


class RecordCodes:
    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """Creates the codes of encryption keys by ID, newest first."""
        derived = {name: hmac.digest(key, DERIVATION, "sha256") for name, key in keys.items()}
        self._keys = {name: hmac.new(key, digestmod="sha256") for name, key in derived.items()}
        self._newest = next(iter(self._keys))

    def __repr__(self) -> str:
        return f"RecordCodes({len(self._keys)} keys)"

    def sign(self, kind: str, values: Sequence[object]) -> str:
        return self._code(self._newest, kind, values)

    def digest(self, kind: str, values: Sequence[object]) -> str:
        """Identifies content for a person. Without the key, no two contents with the same digest can be found."""
        return self._code(self._newest, f"digest of {kind}", values).rpartition(".")[2][:DIGEST_LENGTH]

    def check(self, kind: str, values: Sequence[object], code: object) -> CodeState:
        if code == "":
            return CodeState.MISSING
        if not isinstance(code, str) or "." not in code:  # no key made it
            return CodeState.WRONG
        key = code_key_id(code)
        if key not in self._keys:
            return CodeState.UNKNOWN_KEY
        is_right = hmac.compare_digest(self._code(key, kind, values).encode(), code.encode())
        return CodeState.VALID if is_right else CodeState.WRONG

    def is_current(self, code: object) -> bool:
        """Returns whether the newest key made it."""
        return code_key_id(code) == self._newest

    def _code(self, key: str, kind: str, values: Sequence[object]) -> str:
        # Most values are text, which is encoded without a call.
        encoded = [b"s" + each.encode() if type(each) is str else _encoded(each) for each in (kind, *values)]
        content = b"".join([part for each in encoded for part in (len(each).to_bytes(LENGTH_BYTES, "big"), each)])
        made, view = self._keys[key].copy(), memoryview(content)
        for start in range(0, len(content), PIECE_BYTES):
            made.update(view[start : start + PIECE_BYTES])
        return f"{key}.{made.hexdigest()}"


def code_key_id(code: object) -> str:
    """Returns the ID of the key that made a code; empty for what is no code."""
    return code.partition(".")[0] if isinstance(code, str) else ""


def _encoded(value: object) -> bytes:
    """Encodes a value with its type, so that no two rows have the same encoding."""
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, str):
        return b"s" + value.encode()
    if isinstance(value, int):
        return b"i%d" % value
    if isinstance(value, float):
        return b"f" + repr(value).encode()
    return b"?" + repr(value).encode()  # never written by the service
