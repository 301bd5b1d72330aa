"""Tests that a lean dataclass behaves as one of the standard library."""

from __future__ import annotations

import dataclasses
from dataclasses import FrozenInstanceError, field, replace
from typing import Any, ClassVar, cast

import pytest

from aks_flex_node import lean_dataclass

DECORATORS = [dataclasses.dataclass, lean_dataclass.dataclass]
FROZEN = [*DECORATORS, lambda frozen: lean_dataclass.frozen if frozen else None]


def point_class(decorator: Any) -> Any:
    @decorator(frozen=True)
    class Point:
        limits: ClassVar[dict[str, int]] = {}
        x: int
        y: int = 0
        note: str = field(default="", compare=False)
        secret: str = field(default="hidden", repr=False)

    Point.__qualname__ = "Point"
    return Point


@pytest.mark.parametrize("decorator", FROZEN)
def test_frozen_values_are_compared_hashed_and_shown_by_their_fields(decorator: Any) -> None:
    point = point_class(decorator)
    assert point(1, 2, "a") == point(1, 2, "b") != point(1, 3)
    assert len({point(1), point(1, note="x"), point(2)}) == 2
    assert repr(point(1)) == "Point(x=1, y=0, note='')"
    assert replace(point(1), y=5) == point(1, 5)
    assert point(1) != (1, 0, "hidden")


@pytest.mark.parametrize("decorator", FROZEN)
def test_frozen_values_refuse_changes(decorator: Any) -> None:
    value = point_class(decorator)(1)
    with pytest.raises(FrozenInstanceError):
        value.x = 2
    with pytest.raises(FrozenInstanceError):
        value.other = 2
    with pytest.raises(FrozenInstanceError):
        del value.x
    assert value.x == 1


@pytest.mark.parametrize("decorator", DECORATORS)
def test_values_that_are_not_frozen_can_change_and_have_no_hash(decorator: Any) -> None:
    @decorator
    class Counter:
        count: int = 0
        names: list[str] = field(default_factory=list)

    make: Any = Counter
    counter = make()
    counter.count = 3
    assert counter == make(3)
    assert counter.names is not make().names
    with pytest.raises(TypeError):
        hash(counter)


@pytest.mark.parametrize("decorator", DECORATORS)
def test_methods_that_a_class_defines_are_kept(decorator: Any) -> None:
    @decorator(frozen=True)
    class Name:
        text: str

        def __repr__(self) -> str:
            return self.text

        def __post_init__(self) -> None:
            if not self.text:
                raise ValueError("empty")

    make: Any = Name
    assert repr(make("a")) == "a"
    with pytest.raises(ValueError, match="empty"):
        make("")


@pytest.mark.parametrize("decorator", DECORATORS)
def test_fields_are_inherited(decorator: Any) -> None:
    @decorator(frozen=True)
    class Base:
        a: int

    @decorator(frozen=True)
    class Derived(Base):
        b: int = 2

    base, derived = (cast("Any", each) for each in (Base, Derived))
    assert derived(1) == derived(1, 2)
    assert derived(1) != base(1)
    assert repr(derived(1)).endswith("Derived(a=1, b=2)")


@pytest.mark.parametrize("decorator", DECORATORS)
def test_representation_can_be_left_out(decorator: Any) -> None:
    @decorator(frozen=True, repr=False)
    class Key:
        value: str

    make: Any = Key
    assert "abc" not in repr(make("abc"))
