"""What must be ours on a machine whose ledger is lost: everything that bears our mark or leads to our programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.engine.ledger import Owned
from aks_flex_node.agent.engine.resources import Directory, File, Found, Link, Program, Service
from aks_flex_node.agent.marks import MARK
from aks_flex_node.api.value_rules import SYSTEM_DIRECTORIES
from aks_flex_node.host.host import Kind

if TYPE_CHECKING:
    from aks_flex_node.agent.engine.resources import Resource, Spec
    from aks_flex_node.host.host import Host

UNITS = "/etc/systemd/system"
KERNEL_SETTINGS = {"/etc/sysctl.d", "/etc/modules-load.d"}  # the system's own, though they may be empty
NAME = "aks-flex-node"


def reconstruct(host: Host, spec: Spec, install_dir: str) -> Owned:
    """What of a spec stands on this machine and is ours. What stood there before us is not known any more."""
    owned = Owned()
    trusted = _is_ours(host, spec, install_dir)
    if trusted:  # one that is still in use is not empty, and stays
        owned.paths = {path: {"original": None, "kind": "directory"} for path in _folders(host, spec)}
    for resource in spec.resources:
        if isinstance(resource, Service):
            if _marked(host, f"{UNITS}/{resource.name}"):
                owned.services[resource.name] = {"started_with": ""}
        elif (path := _path(resource)) and host.look(path) is not None:
            record = _record(host, resource, install_dir, trusted=trusted)
            if record is not None:
                owned.paths[path] = {"original": None, **record}
    return owned


def _folders(host: Host, spec: Spec) -> list[str]:
    """Directories above what it wants that it does not name and that no system has by itself, the outermost first."""
    named = spec.folders - spec.paths - SYSTEM_DIRECTORIES - KERNEL_SETTINGS
    return [path for path in sorted(named) if host.look(path) is not None]


def _path(resource: Resource) -> str:
    match resource:
        case Directory(path) | Found(path) | File(path) | Link(path) | Program(path):
            return path
    return ""


def _record(host: Host, resource: Resource, install_dir: str, *, trusted: bool) -> dict[str, object] | None:
    match resource:
        case Program():
            return {"kind": "program"}
        case Link(path):
            return {"kind": "link"} if _leads_home(host, path, install_dir) else None
        case File(path, content):
            named = NAME in path.rpartition("/")[2]  # not every syntax has room for a mark
            return {"kind": "file"} if named or _marked(host, path) or host.read(path) == content else None
        case Directory(_, _, ours) if trusted:
            return {"kind": "directory", **({"ours": True} if ours else {})}
        case Found() if trusted:
            return {"ours": True}
    return None


def _is_ours(host: Host, spec: Spec, install_dir: str) -> bool:
    """Whether anything of it bears our mark, so that its data is ours, too."""
    files = [one.path for one in spec.resources if isinstance(one, File)]
    units = [f"{UNITS}/{one.name}" for one in spec.resources if isinstance(one, Service)]
    homes = [one.path for one in spec.resources if isinstance(one, Directory) and one.ours]
    return (
        any(_marked(host, path) for path in (*files, *units))
        or any(_holds_marked(host, path) for path in homes)
        or any(host.look(program.place) is not None for program in spec.programs)
        or any(_leads_home(host, one.path, install_dir) for one in spec.resources if isinstance(one, Link))
    )


def _leads_home(host: Host, path: str, install_dir: str) -> bool:
    entry = host.look(path)
    return entry is not None and entry.target.startswith(f"{install_dir}/")


def _holds_marked(host: Host, folder: str) -> bool:
    """Whether a file in it bears our mark; what lies beside it is a matter of the same node."""
    paths = [f"{folder}/{name}" for name in host.names(folder)]
    return any((entry := host.look(path)) and entry.kind is Kind.FILE and _marked(host, path) for path in paths)


def _marked(host: Host, path: str) -> bool:
    return MARK.encode() in (host.read(path) or b"")
