"""Resources: the desired state of a component as frozen data, and the mark that files of the agent bear."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from aks_flex_node.agent.artifacts import Artifact


@dataclass(frozen=True)
class Directory:
    """A directory. One that is `ours` goes with all that is ever put into it; another goes only when it is empty."""

    path: str
    mode: int = 0o755
    ours: bool = False


@dataclass(frozen=True)
class RuntimePath:
    """A directory that others make while the node runs, and that goes with all that is in it when the node goes."""

    path: str


@dataclass(frozen=True)
class File:
    path: str
    content: bytes = field(repr=False)
    mode: int = 0o644
    secret: bool = False


@dataclass(frozen=True)
class FileLine:
    """One line of a file that a program of ours writes itself: nothing to do while there is no such file."""

    path: str
    start: str  # how the line starts, after any blanks
    rest: str

    def set(self, content: bytes) -> bytes:
        """The same content, with the line as it should be."""
        pattern = rb"(?m)^(\s*" + re.escape(self.start.encode()) + rb").*$"
        return re.sub(pattern, lambda found: found[1] + self.rest.encode(), content)


@dataclass(frozen=True)
class Symlink:
    path: str
    target: str


@dataclass(frozen=True)
class ProgramTree:
    """One version of a component's programs, in a directory of its own."""

    path: str
    component: str
    version: str
    artifacts: tuple[Artifact, ...]

    @property
    def staging_path(self) -> str:
        """Where it is made ready, beside its place."""
        folder, _, name = self.path.rpartition("/")
        return f"{folder}/.{name}.flex-new"


@dataclass(frozen=True)
class Sysctl:
    key: str
    value: str


@dataclass(frozen=True)
class KernelModule:
    name: str


@dataclass(frozen=True)
class NoSwap:
    """Nothing is swapped to now. What is at boot is a matter of /etc/fstab."""


@dataclass(frozen=True)
class Service:
    """A unit that runs, and is restarted when one of its inputs has changed since it was started."""

    name: str
    inputs: tuple[str, ...]  # paths that it reads
    fingerprint: str  # of what they should hold
    needs: str = ""  # a path that must exist before it makes sense to start it
    wait: bool = True


Resource: TypeAlias = (
    "Directory | RuntimePath | File | FileLine | Symlink | ProgramTree | Sysctl | KernelModule | NoSwap | Service"
)


@dataclass(frozen=True)
class Spec:
    """Everything that one component wants."""

    resources: tuple[Resource, ...] = ()

    @property
    def paths(self) -> frozenset[str]:
        """Where the things that it wants stand."""
        plain = {one.path for one in self.resources if isinstance(one, Directory | RuntimePath | File | Symlink)}
        return frozenset(plain | {one.path for one in self.programs})

    @property
    def parent_dirs(self) -> frozenset[str]:
        """The directories above the things that it makes, whether it names them or not."""
        made = {one.path for one in self.resources if isinstance(one, Directory | File | Symlink)}
        return frozenset(
            parent for path in made | {one.path for one in self.programs} for parent in parent_dirs(path)
        )

    @property
    def owned_dirs(self) -> tuple[str, ...]:
        """Directories that go with all that is in them."""
        return tuple(
            one.path
            for one in self.resources
            if isinstance(one, RuntimePath) or (isinstance(one, Directory) and one.ours)
        )

    @property
    def programs(self) -> tuple[ProgramTree, ...]:
        return tuple(one for one in self.resources if isinstance(one, ProgramTree))

    @property
    def fingerprints(self) -> dict[str, str]:
        """What each of its services is to be started with."""
        return {one.name: one.fingerprint for one in self.resources if isinstance(one, Service)}


def parent_dirs(path: str) -> tuple[str, ...]:
    """The directories that a path lies in, the outermost first."""
    parts = path.split("/")
    return tuple("/".join(parts[:count]) for count in range(2, len(parts)))


def _input_content(one: File | FileLine | Symlink) -> bytes:
    match one:
        case File(_, content):
            return content
        case FileLine(_, _, rest):
            return rest.encode()
    return one.target.encode()


def make_service(
    name: str, inputs: tuple[File | FileLine | Symlink, ...], *values: str, needs: str = "", wait: bool = True
) -> Service:
    """A service with the fingerprint of its inputs, and of words that stand for what is installed elsewhere."""
    total = hashlib.sha256()
    for one in inputs:
        content = _input_content(one)
        total.update(f"{one.path}\0{len(content)}\0".encode() + content)
    total.update("\0".join(values).encode())
    return Service(name, tuple(one.path for one in inputs), total.hexdigest(), needs, wait)


MANAGED_MARK = "Written by aks-flex-node; it writes this file again when it is changed by hand."
