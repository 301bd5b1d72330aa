"""Generates the JSON Schema of configuration files from the models, for editors and other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import NODEFAULT

from aks_flex_node.settings.base import ConfigModel, FieldType, default_of, model_fields
from aks_flex_node.settings.models import Taint
from aks_flex_node.settings.secret import Secret
from aks_flex_node.settings.table import is_model, key_tree, sections

if TYPE_CHECKING:
    from msgspec.structs import FieldInfo

Schema = dict[str, Any]

_PLAIN_TYPES: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Secret: {"minLength": 1, "type": "string", "writeOnly": True},
}
_CONSTRAINTS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "pattern": "pattern"}
TAINT_TEXT = {"type": "string", "description": "`key=value:Effect`"}


def json_schema() -> Schema:
    """Returns the schema of a complete file."""
    root = key_tree()
    models = {section.model.__name__: _object(section.model) for section in sections()}
    models["Taint"] = _object(Taint)
    top = _object(root.model)
    top["properties"]["$schema"] = {"type": "string"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": dict(sorted(models.items())),
        "additionalProperties": False,
        "description": root.model.__doc__,
        **top,
        "title": "AKS Flex Node configuration",
    }


def _object(model: type[ConfigModel]) -> Schema:
    properties = {info.encode_name: _property(info, shape) for info, shape in model_fields(model)}
    required = [info.encode_name for info, _ in model_fields(model) if default_of(info) is NODEFAULT]
    needed = {"required": required} if required else {}
    return {
        "additionalProperties": False,
        "properties": properties,
        **needed,
        "title": model.__name__,
        "type": "object",
    }


def _property(info: FieldInfo, shape: FieldType) -> Schema:
    default = default_of(info)
    schema: Schema = {"description": shape.setting.help if shape.setting else shape.metadata_value("description")}
    if not is_model(shape.inner):
        schema["title"] = info.encode_name.title()
    if default is not NODEFAULT and not isinstance(default, ConfigModel):
        schema["default"] = list(default) if isinstance(default, tuple) else default
    typed = _typed(shape)
    return _sorted({**schema, "anyOf": [typed, {"type": "null"}]} if shape.optional else {**schema, **typed})


def _typed(shape: FieldType) -> Schema:
    inner = shape.inner
    if inner is Taint:
        return {"anyOf": [{"$ref": "#/$defs/Taint"}, TAINT_TEXT]}
    if is_model(inner):
        return {"$ref": f"#/$defs/{inner.__name__}"}
    if shape.choices:
        return {"enum": list(shape.choices), "type": "string"}
    if shape.item and shape.origin is dict:
        return {"additionalProperties": shape.item.inner is object or _typed(shape.item), "type": "object"}
    if shape.item:
        most = shape.metadata_value("max_length")
        items = {"items": _typed(shape.item), "type": "array"}
        return items if most is None else {**items, "maxItems": most}
    bounds = {
        word: shape.metadata_value(name)
        for name, word in _CONSTRAINTS.items()
        if shape.metadata_value(name) is not None
    }
    return _sorted({**_PLAIN_TYPES[inner], **bounds})


def _sorted(schema: Schema) -> Schema:
    return dict(sorted(schema.items()))
