"""Observes all resources that a component desires or owns. Read-only."""

from __future__ import annotations

import time
from dataclasses import field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import certificates
from aks_flex_node.agent.artifacts.digest import TRUSTED_SOURCES
from aks_flex_node.agent.artifacts.model import MANIFEST_NAME, StagedFile, TreeManifest
from aks_flex_node.agent.reconcile.ledger import OwnedResources
from aks_flex_node.agent.reconcile.resources import (
    Directory,
    File,
    FileLine,
    PemFile,
    ProgramTree,
    Service,
    Spec,
    StateFile,
    Symlink,
    Sysctl,
    tree_dirs,
)
from aks_flex_node.host.actions import aside_path
from aks_flex_node.host.disk import backup_path, temporary_path
from aks_flex_node.host.host import EntryKind, FileEntry, Host, UnitState, read_text
from aks_flex_node.host.processes import TIMED_OUT
from aks_flex_node.host.system import parse_swaps, sysctl_path
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


UNVERIFIED = "was not verified with a digest of a trusted source"


@frozen
class Facts:
    """The observed state of a component's resources."""

    live: bool = True
    entries: Mapping[str, FileEntry | None] = field(default_factory=dict)
    contents: Mapping[str, bytes | None] = field(default_factory=dict)
    damage: Mapping[str, str] = field(default_factory=dict)  # path of a program or PEM file -> problem, or empty
    sysctls: Mapping[str, str | None] = field(default_factory=dict)
    modules: frozenset[str] = frozenset()
    swaps: tuple[str, ...] = ()
    units: Mapping[str, UnitState] = field(default_factory=dict)
    replaced: frozenset[str] = frozenset()  # units whose running program was replaced on disk
    unhealthy: Mapping[str, str] = field(default_factory=dict)  # running unit -> why it does not work
    blocked: Mapping[str, str] = field(default_factory=dict)  # unhealthy unit -> what a restart would not change
    owned: OwnedResources = field(default_factory=OwnedResources)
    originals: Mapping[str, bytes] = field(default_factory=dict)  # contents of files that existed before the agent
    children: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of owned directories
    bridges: tuple[str, ...] = ()  # network bridges of the machine, observed by the component that has one
    unfinished: frozenset[str] = frozenset()  # paths with temporary files left by a crash
    broken_links: frozenset[str] = frozenset()  # links in place of directories, whose targets are no directories
    asides: frozenset[str] = frozenset()  # owned paths of which something damaged was set aside


def observe(host: Host, spec: Spec, owned: OwnedResources) -> Facts:
    named = Directory | File | FileLine | PemFile | StateFile | Symlink
    paths = {one.path for one in spec.resources if isinstance(one, named)}
    paths |= {one.needs for one in spec.resources if isinstance(one, Service) and one.needs}
    paths |= spec.parent_dirs | spec.runtime_dirs | set(owned.paths)
    services = {one.name for one in spec.resources if isinstance(one, Service)} | set(owned.services)
    keys = {one.key for one in spec.resources if isinstance(one, Sysctl)} | set(owned.sysctls)
    units = {name: host.unit(name) for name in sorted(services)}
    runtimes = [one for one in spec.resources if isinstance(one, Service) and one.cri_check]
    unhealthy = {one.name: why for one in runtimes if (why := find_cri_problem(host, units[one.name], one.cri_check))}
    blocked = {one.name: why for one in runtimes if one.name in unhealthy and (why := _blocked(host, one, unhealthy))}
    entries = {path: host.stat(path) for path in sorted(paths)}
    copies = {path: (record.get("original") or {}).get("copy") for path, record in owned.paths.items()}
    return Facts(
        live=host.live,
        entries=entries,
        contents={one.path: host.read(one.path) for one in spec.resources if isinstance(one, File | FileLine)},
        damage={
            **{one.path: find_damage(host, one, owned) for one in spec.programs},
            **_pem_damage(host, [one for one in spec.resources if isinstance(one, PemFile)]),
        },
        sysctls={key: _sysctl(host, key) for key in sorted(keys)},
        modules=loaded_modules(host),
        swaps=tuple(parse_swaps(read_text(host, "/proc/swaps"))),
        units=units,
        replaced=frozenset(name for name, unit in units.items() if _replaced(host, unit)),
        unhealthy=unhealthy,
        blocked=blocked,
        owned=owned,
        originals={
            path: host.read(copy) or b"" for path, copy in copies.items() if copy and is_intact_copy(host, copy)
        },
        children={path: host.list_dir(path) for path, record in owned.paths.items() if record.get("ours")},
        unfinished=frozenset(_unfinished(host, spec, owned)),
        broken_links=frozenset(_broken_links(host, spec, entries)),
        asides=frozenset(path for path in owned.paths if host.stat(aside_path(path))),
    )


def observing(path: str) -> Callable[[Host, Spec, OwnedResources], Facts]:
    """Returns a function that observes also a file which the component edits, but does not own."""

    def observe_with_file(host: Host, spec: Spec, owned: OwnedResources) -> Facts:
        facts = observe(host, spec, owned)
        entries, contents = {**facts.entries, path: host.stat(path)}, {**facts.contents, path: host.read(path)}
        return replace(facts, entries=entries, contents=contents)

    return observe_with_file


def _broken_links(host: Host, spec: Spec, entries: Mapping[str, FileEntry | None]) -> Iterator[str]:
    folders = {one.path for one in spec.resources if isinstance(one, Directory)}
    folders |= spec.parent_dirs | spec.runtime_dirs
    for path in sorted(folders):
        if (entry := entries[path]) and entry.kind is EntryKind.LINK:
            target = host.stat(f"{path}/.")
            if target is None or target.kind is not EntryKind.DIRECTORY:
                yield path


def _unfinished(host: Host, spec: Spec, owned: OwnedResources) -> Iterator[str]:
    """Yields paths with leftovers of a crash: temporary files, or backups of replaced trees."""
    programs = {one.path for one in spec.programs}
    yield from (path for path in programs if host.stat(str(backup_path(Path(path)))))
    yield from (path for path in owned.paths if path not in programs and host.stat(str(temporary_path(Path(path)))))


def find_damage(host: Host, program: ProgramTree, owned: OwnedResources) -> str:
    """Returns the problem of an installed program; empty when it is intact."""
    content = host.read(f"{program.path}/{MANIFEST_NAME}")
    if content is None:
        return "not installed"
    manifest = TreeManifest.parse(content)
    if manifest is None:
        return "damaged manifest"
    if not manifest.files:
        return "is empty"
    if wrong := _other_artifact(program, manifest) or _unverified(program, manifest):
        return wrong
    recorded = owned.paths.get(program.path, {})
    seen = recorded.get("seen", {}) if recorded.get("synced") else {}
    wrong_files = (
        f"{name} {wrong}"
        for name, expected in manifest.files.items()
        if (wrong := _file_damage(host, f"{program.path}/{name}", expected, seen.get(name)))
    )
    unsafe = _unsafe_paths(host, program.path, manifest.files)
    return next(chain(_missing_files(program, manifest.files), wrong_files, unsafe), "")


def find_cri_problem(host: Host, unit: UnitState, command: tuple[str, ...]) -> str:
    """Returns why a running container runtime does not serve the CRI; empty if it does, or if that is unknown.

    containerd also runs if its CRI plugin could not start, for example because its disk was full at that moment.
    """
    if not host.live or unit.active != "active":
        return ""
    answer = host.query(*command)
    if answer.code == TIMED_OUT and time.monotonic() - unit.started > SLOW_RUNTIME_SECONDS:
        answer = host.query(*command)  # a short overload may have ended
        if answer.code == TIMED_OUT:
            return SILENT
    rows = [line.split() for line in answer.out.splitlines() if line.strip()] if answer.ok else []
    plugins = {f"{row[0]} {row[1]}": row[-1] for row in rows if len(row) >= 3 and row[0].startswith("io.containerd.")}
    failed = [
        name
        for name, status in plugins.items()
        if (name.startswith("io.containerd.cri.") or name == "io.containerd.grpc.v1 cri") and status != "ok"
    ]
    return f"does not serve the CRI: the plugin {failed[0]} is not loaded" if failed else ""


SILENT = "does not respond"
MIN_FREE_BYTES = 16 << 20
SLOW_RUNTIME_SECONDS = 120.0  # after its start, a runtime can be slow
SLOW_PROGRAM_SECONDS = 2.0  # that a program which only prints its version takes on an overloaded machine


def _blocked(host: Host, service: Service, unhealthy: Mapping[str, str]) -> str:
    """Returns why a restart would not change that a container runtime does not work; empty if it may."""
    if unhealthy[service.name] == SILENT and (why := find_overload(host, service.cri_check)):
        return why
    # Which disk is full; empty if it has space and inodes, or if that is unknown.
    answer = host.query("df", "--output=avail,itotal,iavail", "--block-size=1", service.data_dir)
    numbers = answer.out.split()[-3:] if answer.ok else []
    if len(numbers) != 3 or not numbers[0].isdigit():
        return ""
    free, inodes, free_inodes = (int(each) if each.isdigit() else 0 for each in numbers)
    if free < MIN_FREE_BYTES:
        return f"the disk of {service.data_dir} is full"
    return f"the disk of {service.data_dir} has no free inodes" if inodes and not free_inodes else ""


def find_overload(host: Host, command: tuple[str, ...]) -> str:
    """Returns that the machine is overloaded, if a program is slow also without the runtime, which may then work."""
    began = time.monotonic()
    control = host.query(command[0], "--version")
    seconds = time.monotonic() - began
    if seconds > SLOW_PROGRAM_SECONDS or control.code == TIMED_OUT:
        return f"this machine is overloaded: `{command[0]} --version` took {seconds:.0f} s"
    return ""


def _pem_damage(host: Host, files: Iterable[PemFile]) -> dict[str, str]:
    """Returns the problem of each existing file: of itself, or of the other file of its pair."""
    own = {one.path: certificates.find_damage(host, one.path, one.kinds) for one in files}
    return {
        one.path: own[one.path] or _other_damage(host, one, own.get(one.pair, ""))
        for one in files
        if host.stat(one.path) is not None
    }


def _other_damage(host: Host, file: PemFile, damage: str) -> str:
    """Returns the problem of the other file of a pair, or of both together."""
    if not file.pair:
        return ""
    if damage:
        return f"{file.pair} {damage}"
    if certificates.find_pair_damage((host.read(file.path) or b"") + b"\n" + (host.read(file.pair) or b"")):
        return f"does not match {file.pair}"
    return ""


def _other_artifact(program: ProgramTree, manifest: TreeManifest) -> str:
    """Returns a problem if the installed artifacts do not have the pinned digests."""
    digests = {one.digest for one in manifest.artifacts}
    pinned = [one.digest for one in program.artifacts if one.digest]
    return "does not match the pinned digest" if any(digest not in digests for digest in pinned) else ""


def _unverified(program: ProgramTree, manifest: TreeManifest) -> str:
    """Returns a problem if it is not recorded that a trusted source gave the digests. The running agent cannot verify
    itself, so its own versions are excepted.
    """
    sources = [one.digest_source for one in manifest.artifacts]
    return "" if TRUSTED_SOURCES.issuperset(sources) or program.component == "agent" else UNVERIFIED


def _missing_files(program: ProgramTree, files: Iterable[str]) -> Iterator[str]:
    """Yields files that the manifest does not know."""
    expected = (file.path for one in program.artifacts for file in one.files if not file.is_prefix)
    yield from (f"{path} is missing" for path in expected if path not in files)


def _unsafe_paths(host: Host, directory: str, files: Iterable[str]) -> Iterator[str]:
    """Yields what others than root can write to: the manifest, because it decides what counts as damage, and the
    directories of a program tree, the tree itself first.
    """
    for path in (f"{directory}/{MANIFEST_NAME}", *tree_dirs(directory, files)):
        if wrong := _permission_problem(host.stat(path)):
            yield f"{path.removeprefix(f'{directory}/')} {wrong}"


def _permission_problem(entry: FileEntry | None) -> str:
    """Returns why others than root could replace programs; empty if they cannot."""
    if entry is None:
        return "is missing"
    if not entry.roots:
        return "is not owned by root"
    return f"has mode {entry.mode:04o}" if entry.mode & 0o022 else ""


def _file_damage(host: Host, path: str, expected: StagedFile, seen: int | None) -> str:
    entry = host.stat(path)
    if entry is None:
        return "is missing"
    if expected.link:
        return "" if entry.target == expected.link else "points to another target"
    if entry.size != expected.size:
        return "has a different size"
    if entry.mode != expected.mode or not entry.roots:
        return f"has mode {entry.mode:04o}" if entry.roots else "is not owned by root"
    # Skip the hash if the file has not changed since it was last hashed.
    if entry.changed != seen and host.digest(path) != expected.sha256:
        return "has different content"
    return ""


def file_change_times(host: Host, directory: str) -> dict[str, int]:
    """Returns the change time of each installed file; an unchanged time means unchanged content."""
    manifest = TreeManifest.parse(host.read(f"{directory}/{MANIFEST_NAME}"))
    names = manifest.files if manifest else ()
    entries = {name: host.stat(f"{directory}/{name}") for name in names}
    return {name: entry.changed for name, entry in entries.items() if entry}


def _sysctl(host: Host, key: str) -> str | None:
    content = host.read(sysctl_path(key))
    return None if content is None else " ".join(content.decode(errors="replace").split())


def loaded_modules(host: Host) -> frozenset[str]:
    """Returns loaded and built-in kernel modules, with `_` for `-`."""
    loaded = {line.split()[0] for line in (host.read("/proc/modules") or b"").decode().splitlines() if line}
    known = {name for name in ("overlay", "br_netfilter") if _built_in(host, name)}
    return frozenset(name.replace("-", "_") for name in loaded | known)


def _built_in(host: Host, name: str) -> bool:
    if name == "overlay":
        return b"\toverlay\n" in (host.read("/proc/filesystems") or b"")
    return host.stat("/proc/sys/net/bridge/bridge-nf-call-iptables") is not None


def _replaced(host: Host, unit: UnitState) -> bool:
    entry = host.stat(f"/proc/{unit.pid}/exe") if unit.pid else None
    return entry is not None and entry.target.endswith(" (deleted)")


def is_intact_copy(host: Host, copy: str) -> bool:
    """Returns whether the copy of an original has its content, of which its name is the digest."""
    return host.digest(copy) == copy.rpartition("/")[2]
