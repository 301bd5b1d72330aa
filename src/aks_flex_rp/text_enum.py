"""Base classes of enums whose values are stored and sent as text. Python 3.10 has no StrEnum."""

from __future__ import annotations

from enum import Enum


class TextEnum(str, Enum):
    def __str__(self) -> str:
        return str.__str__(self)

    def __format__(self, format_spec: str) -> str:
        return str.__format__(self, format_spec)


class StoredEnum(TextEnum):
    """An enum that is read from the store, where another release may have written an unknown value.

    An unknown value becomes a new member that equals no other and is shown and stored unchanged.
    """

    @classmethod
    def _missing_(cls, value: object) -> StoredEnum:
        member = str.__new__(cls, str(value))
        member._name_ = member._value_ = str(value)
        return member
