"""Damaged input: flipped bits, and pieces that are lost, duplicated, moved or inserted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

# Values that have broken parsers before.
ODD = (
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    b'"',
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b"null",
    b"-1",
    b"1e999",
)
ODD_TOO = (b"9" * 4400, b"[" * 3000, b"../..", b"\n", b"&a", b"*a", b"!!python/object:os.system", b"<<: *a", b"---\n")


def damaged(sound: bytes, most: int = 4) -> SearchStrategy[bytes]:
    """Generates the bytes with one to `most` damages."""

    @st.composite
    def made(draw: DrawFn) -> bytes:
        content = bytearray(sound)
        for _ in range(draw(st.integers(1, most))):
            damage(draw, content)
        return bytes(content)

    return made()


def damage(draw: DrawFn, content: bytearray) -> None:
    place = draw(st.integers(0, max(len(content) - 1, 0)))
    span = draw(st.integers(1, 64))
    match draw(st.sampled_from(("flip", "lose", "cut", "double", "put in", "overwrite"))):
        case "flip" if content:
            content[place] ^= 1 << draw(st.integers(0, 7))
        case "lose":
            del content[place : place + span]
        case "cut":
            del content[place:]
        case "double":
            content[place:place] = content[place : place + span]
        case "put in":
            content[place:place] = draw(st.sampled_from(ODD + ODD_TOO))
        case "overwrite":
            content[place : place + span] = draw(st.binary(min_size=1, max_size=16))


def json_values() -> SearchStrategy[object]:
    """Generates any JSON value."""
    plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
    return st.recursive(
        plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    )
