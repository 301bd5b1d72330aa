"""Output of the `config` commands: the effective settings with their origins and masked secrets, and a commented
template.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.redaction import MASK, redact
from aks_flex_node.settings.base import ConfigModel, to_document
from aks_flex_node.settings.secret import Secret
from aks_flex_node.settings.setting import DISTURBS, REACHES, SETTERS
from aks_flex_node.settings.table import ConfigKey, ConfigSection, key_tree, keys, value_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aks_flex_node.agent.config.loader import LoadedConfig


DEFAULT = "default"
_SECRET_NAME = re.compile(r"secret|password|token|header|credential", re.IGNORECASE)


@frozen
class SettingRow:
    """One setting. `value` is JSON-compatible and has no secrets. None means that the setting is not set."""

    key: str
    value: Any
    origin: str


def setting_rows(loaded: LoadedConfig, *, given_only: bool = False) -> list[SettingRow]:
    """Returns one row for each setting, in the order of the reference."""
    found = [_row(key, loaded) for key in keys()]
    return [row for row in found if row.origin != DEFAULT] if given_only else found


def _row(key: ConfigKey, loaded: LoadedConfig) -> SettingRow:
    origins = [loaded.origins[key.path]] if key.path in loaded.origins else []
    if key.kind == "map":
        entries = (loaded.origins[each] for each in loaded.origins if each.startswith(f"{key.path}."))
        origins += [origin for origin in entries if origin.startswith("flag ")]
    return SettingRow(key.path, mask_secrets(value_at(loaded.config, key)), ", ".join(origins) or DEFAULT)


def mask_secrets(value: Any, name: str = "") -> Any:
    """Returns the value as JSON-compatible data without possible credentials."""
    if isinstance(value, Secret) or (name and _SECRET_NAME.search(name) and value):
        return MASK
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, ConfigModel):
        return {key: mask_secrets(each) for key, each in to_document(value).items()}
    if isinstance(value, dict):
        return {str(key): mask_secrets(each, str(key)) for key, each in value.items()}
    return [mask_secrets(each) for each in value] if isinstance(value, list | tuple) else value


def describe_setting(key: ConfigKey) -> dict[str, str]:
    """Returns what the table says of a setting, for people; empty texts for what it does not have."""
    setting = key.setting
    return {
        "key": key.path,
        "description": key.description,
        "type": key.type,
        "default": "required" if key.required else shown_default(key),
        "setBy": f"{setting.set_by}: {SETTERS[setting.who]}",
        "reaches": f"{setting.reaches}: {REACHES[setting.reaches]}",
        "disturbs": f"{setting.disturbs}: {DISTURBS[setting.disturbs]}",
        "api": f"properties.{setting.api}" if setting.api else "",
        "variable": key.variable,
    }


def shown_default(key: ConfigKey) -> str:
    """Returns the default as text; empty if there is none."""
    if key.default is None or key.default in ((), {}):
        return ""
    return key.default if isinstance(key.default, str) else json.dumps(mask_secrets(key.default))


# Settings that a join with a bootstrap token needs, with placeholders.
PLACEHOLDERS: dict[str, str] = {
    "azure.bootstrapToken.tokenFile": "/etc/aks-flex-node/bootstrap-token",
    "node.kubelet.serverURL": "<https://the-api-server:443>",
    "node.kubelet.caCertData": "<the CA certificate in base64>",
    "kubernetes.version": "<the version of the cluster, like 1.36.3>",
}
TEMPLATE_HEAD = """\
# Configuration of AKS Flex Node. Save it as /etc/aks-flex-node/config.yaml, mode 0600.
#
# Replace the values in <angle brackets>. All other settings are commented out and show their default, if any.
# To change a setting, remove the # before it and before the sections that contain it.
#
#   aks-flex-node config validate     check the file and list all problems
#   aks-flex-node config show         show the effective settings and their origins
"""


def config_template(values: Mapping[str, str] | None = None) -> str:
    """Returns the text of a configuration file. `values`, by dotted path, replace placeholders and defaults."""
    given = {**PLACEHOLDERS, **(values or {})}
    return TEMPLATE_HEAD + "".join(f"{line}\n" for line in _lines(key_tree(), given, 0))


def _lines(section: ConfigSection, given: Mapping[str, str], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, member in section.members.items():
        if not depth:
            yield ""
        yield f"{indent}# {member.description}"
        if isinstance(member, ConfigKey):
            yield _setting(name, member, given, indent)
        else:
            is_open = any(key.path in given for key in keys(member))
            yield f"{'' if is_open else '#'}{indent}{name}:"
            yield from _lines(member, given, depth + 1)


def _setting(name: str, key: ConfigKey, given: Mapping[str, str], indent: str) -> str:
    if key.path in given:
        return f"{indent}{name}: {_text(given[key.path])}"
    default = "" if key.default is None else f" {_text(mask_secrets(key.default))}"
    return f"#{indent}{name}:{default}"


def _text(value: object) -> str:
    """Formats a value as JSON, which is valid YAML and needs no import."""
    return json.dumps(value, ensure_ascii=False)
