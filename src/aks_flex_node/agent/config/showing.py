"""What `config show` prints: every setting, its value with secrets masked, and where it came from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from aks_flex_node.agent.config.checks import value_at
from aks_flex_node.agent.config.keys import Key, keys
from aks_flex_node.agent.config.masking import public
from aks_flex_node.agent.config.models import NodeConfig
from aks_flex_node.agent.config.secret import MASK, Secret

if TYPE_CHECKING:
    from aks_flex_node.agent.config.loader import Loaded

DEFAULT = "default"
_TELLING = re.compile(r"secret|password|token|header|credential", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """One line. `value` is fit for people and for JSON; None is a setting that is left out."""

    key: str
    value: Any
    origin: str


def rows(loaded: Loaded, *, given_only: bool = False) -> list[Row]:
    """A row per setting, in the order of the reference."""
    found = [_row(key, loaded) for key in keys()]
    return [row for row in found if row.origin != DEFAULT] if given_only else found


def _row(key: Key, loaded: Loaded) -> Row:
    origins = [loaded.origins[key.path]] if key.path in loaded.origins else []
    if key.kind == "map":
        entries = (loaded.origins[each] for each in loaded.origins if each.startswith(f"{key.path}."))
        origins += [origin for origin in entries if origin.startswith("flag ")]
    return Row(key.path, masked(value_at(loaded.config, key)), ", ".join(origins) or DEFAULT)


def masked(value: Any, name: str = "") -> Any:
    """The value as JSON knows it, without anything that could be a credential."""
    if isinstance(value, Secret) or (name and _TELLING.search(name) and value):
        return MASK
    if isinstance(value, str):
        return public(value)
    if isinstance(value, BaseModel):
        return {key: masked(each) for key, each in value.model_dump(mode="json", by_alias=True).items()}
    if isinstance(value, dict):
        return {str(key): masked(each, str(key)) for key, each in value.items()}
    return [masked(each) for each in value] if isinstance(value, list | tuple) else value


def schema() -> dict[str, Any]:
    """The JSON Schema of a configuration file, for editors and other tools."""
    made = NodeConfig.model_json_schema(by_alias=True)
    taints = made["$defs"]["Node"]["properties"]["taints"]
    taints["items"] = {"anyOf": [taints["items"], {"type": "string", "description": "`key=value:Effect`"}]}
    made["properties"]["$schema"] = {"type": "string"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "title": "AKS Flex Node configuration",
    }
