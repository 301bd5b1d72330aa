"""The page provider-settings.md: every setting of the resource provider, from its models."""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from aks_flex_rp.settings import ServiceSettings
from aks_flex_rp.text_enum import TextEnum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

HEAD = """\
# Settings of the resource provider

The keys of the provider's [configuration file](provider.md#configuration).
"""


def provider_settings_page() -> str:
    return "\n".join((HEAD, *_section(ServiceSettings, "")))


def _section(model: type[BaseModel], above: str) -> Iterator[str]:
    yield "| key | type | default | meaning |\n|---|---|---|---|"
    inner: list[tuple[str, type[BaseModel], str]] = []
    for name, field in model.model_fields.items():
        path = f"{above}{field.alias or name}"
        below = _model(field.annotation)
        if below is None:
            yield f"| `{path}` | {_type(field.annotation)} | {_default(field)} | {field.description} |"
        else:
            many = _is_many(field.annotation)
            inner.append((f"{path}{'[]' if many else ''}.", below, str(field.description)))
    yield ""
    for path, below, meaning in inner:
        yield f"**`{path.rstrip('.')}`**: {meaning}\n"
        yield from _section(below, path)


def _model(annotation: Any) -> type[BaseModel] | None:
    """Returns the settings model of a section or of a list of sections, or None for a plain setting."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model(each))), None)


def _is_many(annotation: Any) -> bool:
    return get_origin(annotation) is tuple


def _type(annotation: Any) -> str:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin in {Union, UnionType}:
        return _type(next(each for each in inside if each is not NoneType))
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in inside)
    if isinstance(annotation, type) and issubclass(annotation, TextEnum):
        return " or ".join(f"`{each}`" for each in annotation)
    if origin is tuple:
        return f"list of {_type(inside[0])}"
    if hasattr(annotation, "__metadata__"):
        return _type(inside[0])
    return {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}[annotation]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    if field.default in (None, (), PydanticUndefined):
        return ""
    value = str(field.default) if isinstance(field.default, Path) else field.default
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"
