"""Rebuilds a lost ledger: finds owned resources by the marker in files and by links to installed programs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.components import agent
from aks_flex_node.agent.components.catalog import ALL
from aks_flex_node.agent.paths import state_file
from aks_flex_node.agent.reconcile.ledger import OwnedResources
from aks_flex_node.agent.reconcile.resources import (
    Directory,
    File,
    ProgramTree,
    Resource,
    RuntimePath,
    Service,
    Spec,
    Symlink,
    is_marked,
)
from aks_flex_node.api.value_rules import SYSTEM_DIRECTORIES

if TYPE_CHECKING:
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import Host


UNIT_DIR = "/etc/systemd/system"
KERNEL_SETTINGS = {"/etc/sysctl.d", "/etc/modules-load.d"}  # belong to the operating system even when empty
FILE_NAME_MARK = "aks-flex-node"


def find_owned(host: Host, spec: Spec, install_dir: str) -> OwnedResources:
    """Returns the resources of a spec that exist and are owned by the agent. Their originals are unknown."""
    owned = OwnedResources()
    # If any resource of the spec has the agent's marker, its data directories are owned.
    files = [one.path for one in spec.resources if isinstance(one, File)]
    units = [f"{UNIT_DIR}/{one.name}" for one in spec.resources if isinstance(one, Service)]
    links = [one.path for one in spec.resources if isinstance(one, Symlink)]
    homes = [one.path for one in spec.resources if isinstance(one, Directory) and one.ours]
    inside = [f"{folder}/{name}" for folder in homes for name in host.list_dir(folder)]  # of the same node as a home
    trusted = any(is_marked(host, path, install_dir) for path in (*files, *links, *units, *inside)) or any(
        host.stat(program.path) is not None for program in spec.programs
    )
    if trusted:  # removal skips directories that are not empty
        owned.paths = {path: {"original": None, "kind": "directory"} for path in _parent_dirs(host, spec)}
    for resource in spec.resources:
        if isinstance(resource, Service):
            if is_marked(host, f"{UNIT_DIR}/{resource.name}"):
                owned.services[resource.name] = {"started_with": ""}
        elif (path := _path(resource)) and host.stat(path) is not None:
            record = _record(host, resource, install_dir, trusted=trusted)
            if record is not None:
                owned.paths[path] = {"original": None, **record}
    return owned


def _parent_dirs(host: Host, spec: Spec) -> list[str]:
    """Returns the implied parent directories of a spec that no operating system provides, outermost first."""
    named = spec.parent_dirs - spec.paths - SYSTEM_DIRECTORIES - KERNEL_SETTINGS
    return [path for path in sorted(named) if host.stat(path) is not None]


def _path(resource: Resource) -> str:
    match resource:
        case Directory(path) | RuntimePath(path) | File(path) | Symlink(path) | ProgramTree(path):
            return path
    return ""


def _record(host: Host, resource: Resource, install_dir: str, *, trusted: bool) -> dict[str, object] | None:
    match resource:
        case ProgramTree():
            return {"kind": "program"}
        case Symlink(path):
            return {"kind": "link"} if is_marked(host, path, install_dir) else None
        case File(path, content):
            named = (
                FILE_NAME_MARK in path.rpartition("/")[2]
            )  # not every file syntax allows a comment with the marker
            return {"kind": "file"} if named or is_marked(host, path) or host.read(path) == content else None
        case Directory(_, _, ours) if trusted:
            return {"kind": "directory", **({"ours": True} if ours else {})}
        case RuntimePath() if trusted:
            return {"ours": True}
    return None


def rebuild_ledger(engine: Engine) -> bool:
    """Rebuilds an empty ledger from marked files and links; returns whether anything was found."""
    if engine.ledger.exists:
        return False
    first = {name: owned for name, owned in engine.ledger.components.items() if owned.is_first_contact}
    # The CNI file is found by its name; the placeholder CIDR only makes the spec contain it.
    machine = replace(engine.machine, pod_cidr=engine.machine.pod_cidr or "192.0.2.0/24")
    for component in ALL:
        spec = component.desired(engine.config, machine)
        engine.ledger.components[component.name] = find_owned(engine.host, spec, engine.config.paths.install_dir)
    for name, owned in first.items():
        known = engine.ledger.components[name]
        known.paths = {**owned.paths, **known.paths}
    began = engine.host.stat(state_file(engine.config.paths.data_dir)) is not None
    if not began and not engine.ledger.exists:
        return False
    own = agent.COMPONENT.desired(engine.config, engine.machine).paths
    engine.ledger.owned("agent").paths.update({path: {"original": None} for path in sorted(own)})
    engine.ledger.save()
    return True
