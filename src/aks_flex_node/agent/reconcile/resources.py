"""Resources: the desired state of a component as frozen data, and the marker in files that the agent writes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias

from aks_flex_node.host.host import EntryKind
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_node.agent.artifacts.model import Artifact
    from aks_flex_node.host.host import Host


@frozen
class Directory:
    """A directory. With `ours` it is removed with all its content, else only when it is empty."""

    path: str
    mode: int = 0o755
    ours: bool = False


@frozen
class RuntimePath:
    """A path that other programs create while the node runs; unbootstrap removes it with all its content.

    With `is_directory`, these programs do not work with a file or a broken link in its place.
    """

    path: str
    is_directory: bool = False


@frozen
class File:
    """A file. With `watch_directory`, other files in its directory change what the component does."""

    path: str
    content: bytes = field(repr=False)
    mode: int = 0o644
    secret: bool = False
    watch_directory: bool = False


@frozen
class FileLine:
    """One line of a file that another program writes; ignored while the file does not exist."""

    path: str
    start: str  # start of the line, after whitespace
    rest: str

    def set(self, content: bytes) -> bytes:
        """Returns the content with the desired line."""
        pattern = rb"(?m)^(\s*" + re.escape(self.start.encode()) + rb").*$"
        return re.sub(pattern, lambda found: found[1] + self.rest.encode(), content)

    def is_in(self, content: bytes) -> bool:
        """Returns whether the content has the line, with any rest."""
        return re.search(rb"(?m)^\s*" + re.escape(self.start.encode()), content) is not None


@frozen
class PemFile:
    """A certificate, a key or both, which another program creates if it is missing. It is set aside if it cannot be
    read, if the other file of its pair is missing or cannot be read, or if certificate and key do not match.
    """

    path: str
    kinds: tuple[str, ...] = ("CERTIFICATE", "PRIVATE KEY")  # of the blocks that it must contain
    pair: str = ""  # the path of the key of this certificate, or the reverse


@frozen
class StateFile:
    """A file of the agent's own state, which it writes again by itself. A directory in its place is set aside."""

    path: str


@frozen
class Symlink:
    path: str
    target: str


@frozen
class ProgramTree:
    """One version of a component's programs, in its own directory."""

    path: str
    component: str
    version: str
    artifacts: tuple[Artifact, ...]

    @property
    def staging_path(self) -> str:
        """The directory next to `path` in which the tree is prepared."""
        folder, _, name = self.path.rpartition("/")
        return f"{folder}/.{name}.flex-new"


@frozen
class Sysctl:
    key: str
    value: str


@frozen
class KernelModule:
    name: str


@frozen
class NoSwap:
    """No active swap. Swap at boot is configured in /etc/fstab."""


@frozen
class Service:
    """A running unit that is restarted when one of its inputs changed since its start."""

    name: str
    inputs: tuple[str, ...]  # paths of files that it reads
    fingerprint: str  # of the desired inputs
    needs: str = ""  # a path that must exist before the start
    wait: bool = True
    cri_check: tuple[str, ...] = ()  # of a container runtime: a command that lists its plugins
    data_dir: str = ""  # a directory that it cannot run without space in


Resource: TypeAlias = (
    "Directory | RuntimePath | File | FileLine | PemFile | StateFile | Symlink | ProgramTree | Sysctl | KernelModule"
    " | NoSwap | Service"
)


@frozen
class Spec:
    """The desired resources of one component."""

    resources: tuple[Resource, ...] = ()

    @property
    def paths(self) -> frozenset[str]:
        """The paths of all resources."""
        plain = {one.path for one in self.resources if isinstance(one, Directory | RuntimePath | File | Symlink)}
        return frozenset(plain | {one.path for one in self.programs})

    @property
    def parent_dirs(self) -> frozenset[str]:
        """The parent directories of all created resources."""
        made = {one.path for one in self.resources if isinstance(one, Directory | File | Symlink)}
        return frozenset(
            parent for path in made | {one.path for one in self.programs} for parent in parent_dirs(path)
        )

    @property
    def owned_dirs(self) -> tuple[str, ...]:
        """Directories that are removed with all their content."""
        return tuple(
            one.path
            for one in self.resources
            if isinstance(one, RuntimePath) or (isinstance(one, Directory) and one.ours)
        )

    @property
    def runtime_dirs(self) -> frozenset[str]:
        """Directories that other programs create."""
        return frozenset(one.path for one in self.resources if isinstance(one, RuntimePath) and one.is_directory)

    @property
    def programs(self) -> tuple[ProgramTree, ...]:
        return tuple(one for one in self.resources if isinstance(one, ProgramTree))

    @property
    def fingerprints(self) -> dict[str, str]:
        """The desired fingerprint of each service."""
        return {one.name: one.fingerprint for one in self.resources if isinstance(one, Service)}


def parent_dirs(path: str) -> tuple[str, ...]:
    """Returns the parent directories of a path, outermost first."""
    parts = path.split("/")
    return tuple("/".join(parts[:count]) for count in range(2, len(parts)))


def tree_dirs(path: str, names: Iterable[str]) -> tuple[str, ...]:
    """Returns the directory of a tree and those below it, of the files with these names."""
    inside = {folder for name in names for folder in parent_dirs(f"{path}/{name}") if folder.startswith(f"{path}/")}
    return (path, *sorted(inside))


def _input_content(one: File | FileLine | Symlink) -> bytes:
    match one:
        case File(_, content):
            return content
        case FileLine(_, _, rest):
            return rest.encode()
    return one.target.encode()


def make_service(
    name: str,
    inputs: tuple[File | FileLine | Symlink | PemFile, ...],
    *values: str,
    needs: str = "",
    wait: bool = True,
) -> Service:
    """Creates a service with the fingerprint of its inputs and of `values`, which stand for other dependencies. What
    another program creates is not part of the fingerprint.
    """
    total = hashlib.sha256()
    for one in inputs:
        if isinstance(one, PemFile):
            continue
        content = _input_content(one)
        total.update(f"{one.path}\0{len(content)}\0".encode() + content)
    total.update("\0".join(values).encode())
    return Service(name, tuple(one.path for one in inputs), total.hexdigest(), needs, wait)


MANAGED_MARK = "Written by aks-flex-node; it writes this file again when it is changed by hand."
MAX_MARKED_BYTES = 1 << 20  # files of the agent with the mark are smaller


def is_marked(host: Host, path: str, *folders: str) -> bool:
    """Returns whether the agent wrote an entry: a file with the mark, or a link into one of its folders."""
    entry = host.stat(path)
    if entry is None or entry.kind is EntryKind.LINK:
        return entry is not None and entry.target.startswith(tuple(f"{each}/" for each in folders))
    is_small = entry.kind is EntryKind.FILE and entry.size < MAX_MARKED_BYTES
    return is_small and MANAGED_MARK.encode() in (host.read(path) or b"")
