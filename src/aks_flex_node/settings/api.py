"""The table as the API of the resource provider has it, with the settings that only the API has."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from aks_flex_node.api import value_rules as values
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.settings.base import FieldType
from aks_flex_node.settings.models import Taint
from aks_flex_node.settings.secret import Secret
from aks_flex_node.settings.setting import CONTRIBUTOR, CREDENTIALS, NOTHING, OWNER, VERSIONS, Setting
from aks_flex_node.settings.table import DESIGN_NAMES, keys

POOL_NAME = "poolName"
AUTH_METHODS = ("servicePrincipal", "managedIdentity", "arc")
# What the provider derives the node's settings from, and does not send to the node itself.
API_ONLY: dict[str, Any] = {
    POOL_NAME: Annotated[
        str,
        Setting(
            "Pool of the node. The node has from it what it does not set itself.",
            CONTRIBUTOR,
            NOTHING,
            rule=values.pool_name,
            per_node=True,
            flag="--pool",
            form="Pool",
        ),
    ],
    "azureAuth.method": Annotated[
        Literal["servicePrincipal", "managedIdentity", "arc", "none"],
        Setting(
            "Azure identity of the node's agent.",
            CONTRIBUTOR,
            CREDENTIALS,
            flag="--auth-method",
            form="Azure identity",
        ),
    ],
    "azureAuth.servicePrincipal.certificateOnMachine": Annotated[
        bool,
        Setting(
            "The service principal has a certificate on the machine, not a secret.",
            CONTRIBUTOR,
            CREDENTIALS,
            per_node=True,
            flag="--certificate-on-machine --cert-on-machine",
            form="Certificate on the machine",
        ),
    ],
    "azureAuth.managedIdentity.principalId": Annotated[
        str,
        Setting(
            "Managed identity: its object ID.",
            CONTRIBUTOR,
            CREDENTIALS,
            rule=values.entra_id,
            per_node=True,
            flag="--principal-id",
            form="Object ID of the identity",
        ),
    ],
    "azureAuth.arc.principalId": Annotated[
        str,
        Setting(
            "Azure Arc: object ID of the machine's identity.",
            CONTRIBUTOR,
            CREDENTIALS,
            rule=values.entra_id,
            per_node=True,
            flag="--principal-id",
            form="Object ID of the machine's identity",
        ),
    ],
    "kubernetesAuth.useAzureAuth": Annotated[
        bool, Setting("The kubelet joins with the Azure identity.", CONTRIBUTOR, CREDENTIALS)
    ],
}


@frozen
class ApiSetting:
    """A setting of a node or of a pool's template in the API."""

    path: str
    shape: FieldType
    setting: Setting
    config_path: str = ""  # in a bundle, of the setting of the agent that has the same value; empty if there is none
    default: object = None
    required: bool = False

    @property
    def annotation(self) -> Any:
        return self.shape.annotation

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(self.path.split("."))


def _config_path(path: str) -> str:
    """Returns the path under the name of the design documents, which bundles have."""
    section, _, name = path.rpartition(".")
    return f"{section}.{DESIGN_NAMES.get(path, name)}".lstrip(".")


@cache
def api_settings() -> dict[str, ApiSetting]:
    shared = {
        key.setting.api: ApiSetting(
            key.setting.api, key.shape, key.setting, _config_path(key.path), key.default, required=key.required
        )
        for key in keys()
        if key.setting.api
    }
    own = {path: ApiSetting(path, FieldType.of(of), of.__metadata__[-1]) for path, of in API_ONLY.items()}
    return {**own, **shared}


KINDS = {str: "text", bool: "flag", int: "number", Secret: "secret"}


def settings_data() -> list[dict[str, Any]]:
    """Returns the table for command lines, which read it as JSON: they load nothing of the agent or the provider."""
    rows = []
    for path, each in sorted(api_settings().items()):
        shape, setting = each.shape, each.setting
        kind, choices = value_kind(shape.inner)
        row = {
            "path": path,
            "kind": kind,
            "choices": choices,
            "help": _help(each),
            **({"flag": setting.flag} if setting.flag else {}),
            **({"perNode": True} if setting.per_node else {}),
        }
        rows.append({name: value for name, value in row.items() if value != []})
    return rows


def _help(entry: ApiSetting) -> str:
    """Returns what a person needs to know on a command line: meaning, bounds, default and who may set it."""
    setting, parts = entry.setting, [entry.setting.help]
    least, most = (entry.shape.metadata_value(name) for name in ("ge", "le"))
    parts += [f"From {least} to {most}."] if least is not None and most is not None else []
    shown = entry.default if isinstance(entry.default, str | int) and not isinstance(entry.default, bool) else None
    # The default of a version depends on the cluster's.
    known = shown in (None, "") or "Default" in setting.help or setting.reaches == VERSIONS
    parts += [] if known else [f"Default: {shown}."]
    parts += ["Only owners can set it."] if setting.who == OWNER else []
    parts += [f"Only owners can set `{setting.owner_value}`."] if setting.owner_value else []
    return " ".join(parts)


def value_kind(inner: Any) -> tuple[str, list[str]]:
    """Returns the kind of a type for command lines and forms, and the choices of a text or of a list's items."""
    origin, of = get_origin(inner), get_args(inner)
    if origin is dict:
        return "json" if of[1] is object else "map" if of[1] is str else "lists", []
    if origin is tuple:
        return "taints" if of[0] is Taint else "list", list(get_args(of[0]))
    return ("text", list(of)) if origin is Literal else (KINDS[inner], [])


@cache
def api_tree() -> dict[str, Any]:
    """Returns the settings by name, in nested maps."""
    tree: dict[str, Any] = {}
    for each in api_settings().values():
        *sections, name = each.steps
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = each
    return tree
