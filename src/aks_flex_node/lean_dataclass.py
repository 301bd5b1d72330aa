"""`dataclass` with less CPU time at import than the decorator of the standard library, and `frozen` for frozen ones.

That one compiles up to six methods for each class, which was almost half of the CPU time of the daemon's imports.
This one compiles only `__init__`; all classes share the other methods. Type checkers see the standard decorator.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - exported

    from typing_extensions import dataclass_transform

    Class = TypeVar("Class")

    @dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
    def frozen(cls: type[Class]) -> type[Class]:
        """Makes a class a frozen dataclass."""
        ...
else:

    def frozen(cls):
        return _processed(cls, frozen=True, with_repr=True)

    def dataclass(cls=None, *, frozen=False, repr=True):  # noqa: A002 - as in the standard library
        """Makes a class a dataclass. Methods that it defines itself are kept."""
        return _processed(cls, frozen, repr) if cls else lambda each: _processed(each, frozen, repr)


def _processed(cls: type[Any], frozen: bool, with_repr: bool) -> type[Any]:
    cls.__doc__ = cls.__doc__ or cls.__name__  # otherwise made of the signature, at a cost
    own = cls.__dict__
    dataclasses.dataclass(cls, repr=False, eq=False)
    shared: dict[str, object] = {"__eq__": _is_equal, "__hash__": _hash if frozen else None}
    if "__eq__" in own:
        shared = {}
    if with_repr:
        shared["__repr__"] = _represent
    if frozen:
        shared |= {"__setattr__": _set_once, "__delattr__": _refuse}
    for name, method in shared.items():
        if name not in own:
            setattr(cls, name, method)
    return cls


_fields = functools.cache(dataclasses.fields)


def _compared(self: Any) -> tuple[object, ...]:
    return tuple([getattr(self, field.name) for field in _fields(self.__class__) if field.compare])


def _is_equal(self: Any, other: object) -> bool:
    return _compared(self) == _compared(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _represent(self: Any) -> str:
    shown = [f"{field.name}={getattr(self, field.name)!r}" for field in _fields(self.__class__) if field.repr]
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _set_once(self: Any, name: str, value: object) -> None:
    """Accepts the assignments of `__init__` only."""
    if name in self.__dict__ or name not in self.__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    self.__dict__[name] = value


def _refuse(_self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
