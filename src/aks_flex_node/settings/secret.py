"""Secret values, which print as `***`."""

from __future__ import annotations

from aks_flex_node.redaction import MASK


class Secret:
    """A secret that prints as `***`. Only `reveal` returns the value, so that all uses can be found."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)
