"""Applies the options of `node` and `pool` commands to properties: a document in, a document out.

The options are those of the table of settings, whose data is in settings.json. `aks-flex-rp` imports this module, and
the wheel of `az aks flex-node` contains a copy of both. It imports only the standard library.
"""

from __future__ import annotations

import copy
import difflib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Document = dict[str, Any]
    NodeChange = Callable[[Document], Document]

POOL_NAME = "poolName"
AUTH, AUTH_METHOD, KUBERNETES_AUTH = "azureAuth", "azureAuth.method", "kubernetesAuth.method"
NO_IDENTITY, BOOTSTRAP_TOKEN = "none", "bootstrapToken"  # azureAuth without an identity: in the API, and in az
SERVICE_PRINCIPAL = "servicePrincipal"
KUBELET, TAINTS = "nodeConfig.kubelet", "nodeConfig.taints"
WINDOW_START = "nodeConfig.updatePolicy.maintenanceWindow.start"
REMOVED_WITH_SECTION = {AUTH_METHOD, KUBERNETES_AUTH, WINDOW_START}  # the rest of the section needs them
DAILY = "daily"
ATTEMPTS = 4  # when other clients change the node at the same time
GROUPS = ("Node", "Versions", "Identity", "Management")
LISTS = {"map", "list", "taints", "section", "paths", "waves"}  # kinds of options with several values


@dataclass(frozen=True)
class SettingOption:
    """An option that sets one setting, or the same one of several Azure identities."""

    flags: tuple[str, ...]  # the first is its name; others are also understood
    paths: tuple[str, ...]
    kind: str  # text, number, flag, secret, map, list, taints, section, paths, or file; others in rollout_options
    help: str
    group: str
    choices: tuple[str, ...] = ()
    off: str = ""  # the flag that sets false
    per_node: bool = False  # no template of a pool can have it

    @property
    def name(self) -> str:
        return self.flags[0].removeprefix("--").removesuffix("-file").replace("-", "_")


@cache
def table() -> dict[str, Document]:
    """Returns the settings of a node and of a template by their path below `properties`."""
    rows = json.loads(Path(__file__).with_name("settings.json").read_bytes())
    return {row["path"]: row for row in rows}


UNSET = SettingOption(
    ("--unset",),
    ("",),
    "paths",
    "Remove settings by path, for example nodeConfig.maxPods. The value of the pool, or the default, applies again.",
    "Node",
)


@cache
def setting_options() -> tuple[SettingOption, ...]:
    """Returns the options of `node create` and `node update`. The commands of pools have those for a template."""
    by_flag: dict[str, list[Document]] = {}
    for row in table().values():
        if "flag" in row:
            by_flag.setdefault(row["flag"], []).append(row)
    kubelet = SettingOption(
        ("--kubelet-settings", "--kubelet-setting"),
        (KUBELET,),
        "section",
        "Settings of the kubelet, for example kubeReserved.cpu=100m. KEY=VALUE sets, KEY- removes one.",
        "Node",
    )
    text = "File (JSON or YAML) with all settings of the kubelet (nodeConfig.kubelet of the API)."
    file = SettingOption(("--kubelet-config",), (KUBELET,), "file", text, "Node")
    made = [
        UNSET,
        file,
        *(_option(flag, rows) for flag, rows in by_flag.items()),
        kubelet,
    ]  # others override it
    return tuple(sorted(made, key=lambda option: GROUPS.index(option.group)))


def _option(flag: str, rows: list[Document]) -> SettingOption:
    on, _, off = flag.partition(" / ")
    row, paths = rows[0], tuple(each["path"] for each in rows)
    choices = (*row.get("choices", ()), *((BOOTSTRAP_TOKEN,) if row["path"] == AUTH_METHOD else ()))
    text = " ".join(dict.fromkeys(each["help"] for each in rows)) + {
        "map": " KEY=VALUE sets, KEY- removes one. Others are kept.",
        "taints": " KEY=VALUE:EFFECT or KEY:EFFECT sets, KEY:EFFECT- removes one. Others are kept.",
        "list": f" One of: {', '.join(choices)}, or {DAILY}.",
        "text": " '' takes the node out of its pool." if row["path"] == POOL_NAME else "",
        "secret": " A file, `-` for standard input.",
    }.get(row["kind"], "")
    shown = (tuple(on.split()), paths, row["kind"], text, _group(row["path"]), choices)
    return SettingOption(*shown, off, row.get("perNode", False))


def _group(path: str) -> str:
    top, _, rest = path.partition(".")
    if top in {AUTH, "kubernetesAuth"}:
        return "Identity"
    managed = top == "continuousMonitoring" or rest.startswith(("updatePolicy", "driftPolicy"))
    return "Versions" if top == "versions" else "Management" if managed else "Node"


class NodeOptions(dict[str, Any]):
    """The given options by name. One that is None was not given."""

    def __repr__(self) -> str:
        return f"NodeOptions({', '.join(self)})"  # a value can be a secret


class OptionError(ValueError):
    """An option with an invalid value: its name, value, reason and hint. Each front end formats its own message."""

    def __init__(self, option: str, value: str, reason: str, hint: str) -> None:
        super().__init__(f"{option}: {value!r} {reason}")
        self.option = option
        self.value = value
        self.reason = reason
        self.hint = hint


class UnusedOptionsError(OptionError):
    """Options of an identity that the node's authentication method does not use. `value` is the method."""


def sections() -> tuple[str, ...]:
    """Returns the paths of the objects in properties, outer ones first."""
    found = {path.rpartition(".")[0] for path in table()} | {
        path for path, row in table().items() if row["kind"] in {"map", "lists", "json"}
    }
    above = {".".join(path.split(".")[:end]) for path in found for end in range(1, path.count(".") + 1)}
    return tuple(sorted({*found, *above} - {""}))


def writable_properties(resource: Document) -> Document:
    """Returns the properties of a resource that a caller may write."""
    properties, writable = resource.get("properties", {}), {path.partition(".")[0] for path in table()}
    return {name: copy.deepcopy(value) for name, value in properties.items() if name in writable}


def keep_managed(resource: Document, options: NodeOptions) -> NodeOptions:
    """Returns the options with which a node that is managed because of its pool stays so when it leaves the pool."""
    properties = resource.get("properties", {})
    managed = "continuous_monitoring"
    leaves = POOL_NAME in _unset_paths(options) and properties.get(POOL_NAME) and options.get(managed) is None
    if not leaves or "continuousMonitoring" in properties:
        return options
    is_managed = properties.get("effective", {}).get("continuousMonitoring")
    return NodeOptions({**options, managed: True}) if is_managed else options


def stays_managed_text(resource: Document) -> str:
    """Returns what a user is told after `keep_managed` has changed the options."""
    name, pool = resource["name"], resource["properties"][POOL_NAME]
    return f"{name} stays managed, as in the pool {pool}: it has continuousMonitoring as its own setting now."


def malformed_path(properties: Document) -> str:
    """Returns the first path whose type does not match, so that options cannot be applied, or an empty string."""
    for path in sections():
        if not isinstance(value_at(properties, path) or {}, dict):
            return path
    taints = value_at(properties, TAINTS) or []
    is_valid = isinstance(taints, list) and all(isinstance(each, dict) for each in taints)
    return "" if is_valid else TAINTS


def value_at(document: Mapping[str, Any], path: str) -> Any:
    """Returns the value at a dotted path, or None."""
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _set(document: Document, path: str, value: object) -> None:
    """Sets a value, or removes an empty one with the sections that are empty then."""
    name, _, rest = path.partition(".")
    if rest:
        inner = document.setdefault(name, {})
        _set(inner, rest, value)
        value = inner
    if value in ("", [], {}):
        document.pop(name, None)
    else:
        document[name] = value


def auth_method_of(properties: Document) -> str:
    """Returns the method of azureAuth. Default: none."""
    return str(value_at(properties, AUTH_METHOD) or NO_IDENTITY)


def apply_options(properties: Document, options: NodeOptions) -> Document:
    """Returns the properties with the options applied. Other properties are unchanged."""
    changed = copy.deepcopy(properties)
    for path in _unset_paths(options):
        _set(changed, path.rpartition(".")[0] if path in REMOVED_WITH_SECTION else path, {})
    # Without an identity of its own, a node that enters a pool gets that of the pool.
    if options.get("pool") and changed.get(AUTH) == {"method": NO_IDENTITY} and not changed.get(POOL_NAME):
        del changed[AUTH]
    _apply_identity(changed, options)
    for option in setting_options():
        value, path = options.get(option.name), option.paths[0]
        if value in (None, "", ()) or option is UNSET or path.startswith(AUTH):
            continue
        if path == KUBERNETES_AUTH:
            changed["kubernetesAuth"] = {"useAzureAuth": value != BOOTSTRAP_TOKEN, "method": value}
        else:
            _set(changed, path, _changed_value(option, value_at(changed, path), value))
    return changed


def _unset_paths(options: NodeOptions) -> list[str]:
    """Returns the settings to remove: those of --unset, and those of an option with an empty text."""
    paths = list(options.get(UNSET.name, ()))
    for path in paths:
        if path not in table() and path not in sections():
            near = difflib.get_close_matches(path, table(), 1)
            hint = (
                f"Did you mean {near[0]}?" if near else "Paths are as in `node show`, for example nodeConfig.maxPods."
            )
            raise OptionError(UNSET.name, path, "is not a setting", hint)
    return paths + [path for option in setting_options() if options.get(option.name) == "" for path in option.paths]


def _changed_value(option: SettingOption, before: Any, value: Any) -> object:
    match option.kind:
        case "map":
            return _labels(before or {}, value)
        case "taints":
            return _taints(before or [], value)
        case "list":
            return _days(option.choices, value)
        case "section":
            return _kubelet(before or {}, value)
    return value


def _apply_identity(changed: Document, options: NodeOptions) -> None:
    """Sets azureAuth and removes the settings of the previous method: the service rejects a body with two methods."""
    method = _auth_method(changed, options)
    settings: Document = {}
    unused: list[SettingOption] = []
    for option in setting_options():
        value = options.get(option.name)
        if value in (None, "") or option.paths[0] == AUTH_METHOD or not option.paths[0].startswith(f"{AUTH}."):
            continue
        found = [each.rpartition(".")[2] for each in option.paths if each.startswith(f"{AUTH}.{method}.")]
        settings |= dict.fromkeys(found, value)
        unused += [] if found else [option]
    if unused:
        flags = " and ".join(sorted(option.flags[0] for option in unused))
        using = [{path.split(".")[1] for path in option.paths} for option in unused]
        methods = [each for each in table()[AUTH_METHOD]["choices"] if all(each in known for known in using)]
        hint = (
            f"Also set the method: --auth-method {' or '.join(methods)}." if methods else "No method uses them all."
        )
        raise UnusedOptionsError("auth-method", method, f"does not use {flags}", hint)
    if options.get("auth_method") and method == NO_IDENTITY:
        changed[AUTH] = {"method": NO_IDENTITY}
        changed.pop("kubernetesAuth", None)  # without an identity, the kubelet cannot use one to join
    elif options.get("auth_method") or settings:
        block = {**changed.get(AUTH, {}).get(method, {}), **settings}
        if settings.get("clientSecret"):  # replaces the certificate on the machine
            block.pop("certificateOnMachine", None)
        changed[AUTH] = {"method": method, **({method: block} if block else {})}


def _auth_method(properties: Document, options: NodeOptions) -> str:
    """Returns the method after the change. A method from a file or from the service is validated by the service."""
    requested = options.get("auth_method")
    if not requested:
        return SERVICE_PRINCIPAL if options.get("client_secret") else auth_method_of(properties)
    choices = table()[AUTH_METHOD]["choices"]
    method = NO_IDENTITY if requested == BOOTSTRAP_TOKEN else requested
    if method not in choices:
        raise OptionError(
            "auth-method", requested, "is no authentication method", f"Choose one of {', '.join(choices)}."
        )
    return str(method)


def _days(weekdays: tuple[str, ...], given: Sequence[str]) -> list[str]:
    chosen = {text: text.strip().capitalize() for text in given if text.lower() != DAILY}
    for text, day in chosen.items():
        if day not in weekdays:
            hint = f"Use {', '.join(weekdays)}, or {DAILY}."
            raise OptionError("window-days", text, "is not a weekday", hint)
    return [each for each in weekdays if each in chosen.values()]


def _kubelet(before: Document, changes: Sequence[str]) -> Document:
    """Applies kubelet settings: KEY=VALUE or KEY.NAME=VALUE sets, KEY- removes."""
    kubelet = copy.deepcopy(before)
    for change in changes:
        path, equals, value = change.partition("=")
        removes = not equals and path.endswith("-")
        key, _, name = path.removesuffix("-" if removes else "").partition(".")
        kind = table().get(f"{KUBELET}.{key}", {}).get("kind", "")
        if not kind or not (equals or removes) or (bool(name) != (kind in {"map", "json"}) and not removes):
            raise _not_a_kubelet_setting(change)
        given: Any = value
        if kind == "json":
            given = _json_value(value)
        elif kind == "number" and not removes:
            given = _number(change, key, value)
        if name:
            entries = {**kubelet.get(key, {}), name: given}
            if removes:
                del entries[name]
            _set(kubelet, key, entries)
        else:
            _set(kubelet, key, "" if removes else given)
    return kubelet


def _number(change: str, key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise OptionError("kubelet-settings", change, "is not a whole number", f"Use {key}=N.") from None


def _json_value(text: str) -> Any:
    """Returns the value of JSON text. Other text is a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _not_a_kubelet_setting(change: str) -> OptionError:
    kinds = {path.removeprefix(f"{KUBELET}."): row["kind"] for path, row in table().items() if KUBELET in path}
    keys = [f"{key}.NAME" if kind in {"map", "json"} else key for key, kind in kinds.items()]
    hint = f"Use KEY=VALUE to set, or KEY- to remove. Keys: {', '.join(keys)}."
    return OptionError("kubelet-settings", change, "is not a kubelet setting", hint)


def _labels(before: dict[str, str], changes: Sequence[str]) -> dict[str, str]:
    """Applies label arguments as kubectl does: KEY=VALUE sets, KEY- removes."""
    labels = dict(before)
    for change in changes:
        key, equals, value = change.partition("=")
        if equals and key:
            labels[key] = value
        elif change.endswith("-") and change != "-":
            labels.pop(change.removesuffix("-"), None)
        else:
            hint = "Use KEY=VALUE to set a label, or KEY- to remove it."
            raise OptionError("labels", change, "is not a label", hint)
    return labels


def _taints(before: list[Document], changes: Sequence[str]) -> list[Document]:
    """Applies taint arguments as kubectl does: KEY=VALUE:EFFECT or KEY:EFFECT sets, KEY:EFFECT- or KEY- removes."""
    taints = {(each.get("key"), each.get("effect")): each for each in before}
    for change in changes:
        name, _, effect = change.removesuffix("-").partition(":")
        key, equals, value = name.partition("=")
        if change.endswith("-"):
            taints = {
                identity: each
                for identity, each in taints.items()
                if not (identity[0] == key and effect in {"", identity[1]})
            }
        elif key and effect:
            taints[key, effect] = {"key": key, **({"value": value} if equals else {}), "effect": effect}
        else:
            hint = (
                "Use KEY=VALUE:NoSchedule (or PreferNoSchedule, NoExecute) to set a taint, or KEY:EFFECT- to "
                "remove it."
            )
            raise OptionError("taints", change, "is not a taint", hint)
    return list(taints.values())


def filter_text(values: Mapping[str, str | None], labels: Sequence[str]) -> str:
    """Returns the `$filter` of a list of nodes with these values and labels. Raises OptionError."""
    filters = {name: value for name, value in values.items() if value is not None}
    for text in labels:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise OptionError("label", text, "is not a label", "Use KEY=VALUE.")
        filters[f"labels/{key}"] = value
    quoted = {name: value.replace("'", "''") for name, value in filters.items()}
    return " and ".join(f"{name} eq '{value}'" for name, value in quoted.items())


class ConflictingChangesError(Exception):
    """Another client changed the same settings between two reads. `paths` names them."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__(", ".join(paths))
        self.paths = paths


def write_changed(
    found: Document,
    read: Callable[[], Document],
    put: Callable[[Document, str, bool], Document | None],
    change: NodeChange,
    *,
    replaces: bool,
    always: bool,
) -> Document | None:
    """Writes the changed properties of a resource with its ETag. Returns it, or None if there is no change.

    If another client wrote meanwhile, `put` returns None, or raises if it is the last attempt. Then the resource is
    read and changed again. An unchanged one is written only with `always`.
    """
    for attempt in range(1, ATTEMPTS + 1):
        first = writable_properties(found)
        desired = change(first)
        if desired == first and not always:
            break
        written = put(desired, found["etag"], attempt == ATTEMPTS)
        if written is not None:
            return written
        found = read()
        again = writable_properties(found)
        if conflicts := ["all settings"] if replaces else conflicting_paths(first, again, change):
            raise ConflictingChangesError(conflicts)
    return None


def conflicting_paths(first: Document, second: Document, change: NodeChange) -> list[str]:
    """Returns the paths that the change affects and that another client changed between two reads."""
    ours, theirs = _changes(first, change), _changes(second, change)
    return [path for path, values in theirs.items() if ours.get(path) != values]


def _changes(properties: Document, change: NodeChange) -> dict[str, tuple[object, object]]:
    """Returns the values before and after the change, by path."""
    before, after = dict(_leaves(properties)), dict(_leaves(change(properties)))
    paths = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    return {path: (before.get(path), after.get(path)) for path in paths}


def _leaves(document: Document, above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        path = f"{above}.{name}" if above else name
        if isinstance(value, dict):
            yield from _leaves(value, path)
        else:
            yield path, value
