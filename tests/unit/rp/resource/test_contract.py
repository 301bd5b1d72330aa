"""The published contract and the table of settings say the same of each property that a request can set."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import pytest
from msgspec.structs import fields

from aks_flex_node.settings.api import ApiSetting, api_settings
from aks_flex_node.settings.base import FieldType
from aks_flex_node.settings.models import Taint
from aks_flex_node.settings.secret import Secret
from aks_flex_node.settings.value_checks import convert, violations
from aks_flex_rp.rollouts.spec import RolloutProperties, option_data

if TYPE_CHECKING:
    from collections.abc import Iterator

Schema = dict[str, Any]
DEFINITIONS: dict[str, Schema] = json.loads((Path(__file__).parents[4] / "api/swagger/flexnode.json").read_text())[
    "definitions"
]
PLAIN = {str: "string", Secret: "string", bool: "boolean", int: "integer"}
INT32 = (-(2**31), 2**31 - 1)
PROBES = (
    *(
        "",
        " ",
        "a",
        "A",
        "1",
        "a b",
        "Ä",
        "-a",
        "a-",
        "a_b",
        "a.b",
        ".",
        "*",
        "a/b",
        "10.0.0.1",
        "10.0.0.0/24",
        "::1",
    ),
    *("10.0.0.0/33", "1.2", "1.2.3", "v1.2.3", "1.2.3-rc.1", "1.2.3 ", "24:00", "23:59", "9:00", "UTC", "VpnGw2AZ"),
    *("http://a.example", "https://a.example", "https://a.example/b", "https://u@a.example", "https://a.example:443"),
    *("0" * 33, "a" * 55, "a" * 64, "a" * 65, "a" * 81, "a" * 91, "a" * 254, f"https://a.example/{'b' * 2048}"),
    "11111111-1111-1111-1111-111111111111",
)


def resolved(schema: Schema) -> Schema:
    parts = [resolved(each) for each in schema.get("allOf", ())]
    if "$ref" in schema:
        parts.append(resolved(DEFINITIONS[schema["$ref"].rpartition("/")[2]]))
    return {name: value for each in (*parts, schema) for name, value in each.items() if name not in ("allOf", "$ref")}


def writable(schema: Schema, above: str = "") -> Iterator[tuple[str, Schema]]:
    """Yields the path and the schema of each property that a request can set."""
    for name, each in resolved(schema)["properties"].items():
        found = resolved(each)
        if found.get("readOnly"):
            continue
        if "properties" in found:
            yield from writable(found, f"{above}{name}.")
        else:
            yield f"{above}{name}", found


CONTRACT = dict(writable(DEFINITIONS["FlexNodeConfigProperties"]))
SETTINGS = api_settings()


def expected(annotation: Any) -> Schema:
    """Returns type, choices and bounds of a value as the contract has them."""
    shape = FieldType.of(annotation)
    origin, inner = get_origin(shape.inner), shape.inner
    if inner is object:
        return {}
    if inner is Taint:
        return {"type": "object", **{one.encode_name: expected(one.type) for one in fields(Taint)}}
    if origin is dict:
        return {"type": "object", "values": expected(get_args(inner)[1])}
    if origin is tuple:
        return {"type": "array", "items": expected(get_args(inner)[0]), "most": shape.metadata_value("max_length")}
    if origin is Literal:
        return {"type": "string", "choices": set(get_args(inner))}
    least, most = (shape.metadata_value(name) for name in ("ge", "le"))
    bounds = {"least": INT32[0] if least is None else least, "most": INT32[1] if most is None else most}
    return {"type": PLAIN[inner], **(bounds if inner is int else {})}


def said(schema: Schema) -> Schema:
    """Returns the same of a schema."""
    schema = resolved(schema)
    if "properties" in schema:
        return {"type": "object", **{name: said(each) for name, each in schema["properties"].items()}}
    if "additionalProperties" in schema:
        return {"type": "object", "values": said(schema["additionalProperties"])}
    found: Schema = {"type": schema["type"]} if "type" in schema else {}
    if found == {"type": "array"}:
        return {**found, "items": said(schema["items"]), "most": schema.get("maxItems")}
    if "enum" in schema:
        return {**found, "choices": set(schema["enum"])}
    least, most = schema.get("minimum", INT32[0]), schema.get("maximum", INT32[1])
    return {**found, "least": least, "most": most} if schema.get("type") == "integer" else found


def test_contract_and_table_have_the_same_properties() -> None:
    assert set(CONTRACT) == set(SETTINGS)
    template = {path for path, _ in writable(DEFINITIONS["FlexNodeTemplate"])}
    of_nodes = {path for path, entry in SETTINGS.items() if entry.setting.per_node}
    assert set(SETTINGS) - of_nodes <= template <= set(SETTINGS)


@pytest.mark.parametrize("path", SETTINGS)
def test_contract_has_type_choices_and_bounds_of_the_table(path: str) -> None:
    entry, schema = SETTINGS[path], CONTRACT[path]
    assert said(schema) == expected(entry.annotation)
    if "default" in schema and entry.config_path:
        assert schema["default"] == entry.default


def test_contract_needs_what_the_table_needs() -> None:
    for entry in SETTINGS.values():
        *sections, name = entry.steps
        schema = DEFINITIONS["FlexNodeConfigProperties"]
        for section in sections:
            schema = resolved(schema)["properties"][section]
        if entry.required:
            assert name in resolved(schema)["required"], entry.path


def accepts(entry: ApiSetting, text: str) -> bool:
    converted, problems = convert(entry.shape, text)
    return not problems and not [*violations(entry.setting, converted, sent=True)]


def allows(schema: Schema, text: str) -> bool:
    is_matched = re.search(schema.get("pattern", ""), text) is not None
    return is_matched and schema.get("minLength", 0) <= len(text) <= schema.get("maxLength", len(text))


@pytest.mark.parametrize("path", [path for path, each in CONTRACT.items() if {"pattern", "maxLength"} & set(each)])
def test_text_that_the_table_accepts_is_one_that_the_contract_allows(path: str) -> None:
    accepted = [text for text in PROBES if accepts(SETTINGS[path], text)]
    assert accepted
    assert [text for text in accepted if not allows(CONTRACT[path], text)] == []


ROLLOUT = {each["path"]: each for each in option_data()}
BOUNDS = ("minimum", "maximum", "minItems", "maxItems")


def test_contract_and_table_have_the_same_options_of_a_roll_out() -> None:
    published = DEFINITIONS["FlexNodePoolRolloutProperties"]["properties"]
    schemas = {name: resolved(each) for name, each in published.items()}
    own = RolloutProperties.model_json_schema()
    assert {name for name, each in schemas.items() if not each.get("readOnly")} == set(ROLLOUT)
    for name, option in ROLLOUT.items():
        schema, ours = schemas[name], own["properties"][name]
        shape = next(iter(ours.get("anyOf", ())), ours)
        shape = own["$defs"][shape["$ref"].rpartition("/")[2]] if "$ref" in shape else shape
        assert schema["type"] == shape["type"], name
        assert [schema.get(each) for each in BOUNDS] == [shape.get(each) for each in BOUNDS], name
        assert schema.get("enum", []) == list(option.get("choices", ())), name
        assert schema.get("default", ours.get("default")) == ours.get("default"), name
