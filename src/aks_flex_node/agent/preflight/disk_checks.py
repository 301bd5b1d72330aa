"""Check of the file systems that a node writes to: free space, inodes, mount options and type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight.check import CheckFinding, error, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.preflight.check import PreflightContext
    from aks_flex_node.agent.preflight.interfaces import FileSystemInfo

MIB, GIB = 1 << 20, 1 << 30
MIN_INODES = 10_000
UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 1 << 10, "Mi": MIB, "Gi": GIB, "Ti": 1 << 40}
# containerd stacks layers with overlayfs, which cannot stand on these.
UNSUPPORTED_FILE_SYSTEMS = {"overlay", "nfs", "nfs4", "cifs", "vfat", "exfat", "9p", "fuseblk", "squashfs"}


@dataclass(frozen=True)
class SpaceRequirement:
    """What a directory will take."""

    path: str
    least: int
    good: int
    signal: str = "nodefs"  # how the kubelet calls the file system it is on


@dataclass(frozen=True)
class Volume:
    """A file system, with all that is needed of it."""

    file_system: FileSystemInfo
    needs: tuple[SpaceRequirement, ...]

    @property
    def title(self) -> str:
        paths = [need.path for need in self.needs]
        return ", ".join(paths[:2]) + (f" and {len(paths) - 2} more" if len(paths) > 2 else "")


def space_requirements(config: NodeConfig) -> tuple[SpaceRequirement, ...]:
    paths = config.paths
    return (
        SpaceRequirement(paths.install_dir, 768 * MIB, 1536 * MIB),
        SpaceRequirement(paths.data_dir, 256 * MIB, 512 * MIB),
        SpaceRequirement(paths.containerd_dir, 1 * GIB, 4 * GIB, "imagefs"),
        SpaceRequirement(paths.kubernetes.kubelet_dir, 128 * MIB, 256 * MIB),
        SpaceRequirement(paths.log_dir, 32 * MIB, 128 * MIB),
    )


def check_disk(context: PreflightContext) -> Iterator[CheckFinding]:
    there = volumes(context)
    wrong = [finding for volume in there for finding in _judge(context, volume)]
    wrong += [*_programs_run(context), *_images_fit(context)]
    yield from wrong
    if not wrong:
        yield ok(", ".join(f"{_size(volume.file_system.free)} free for {volume.title}" for volume in there))


def volumes(context: PreflightContext) -> list[Volume]:
    """The file systems under the node's directories, each once."""
    found: dict[int, Volume] = {}
    for need in space_requirements(context.config):
        file_system = nearest_file_system(context, need.path)
        if file_system:
            earlier = found[file_system.device].needs if file_system.device in found else ()
            found[file_system.device] = Volume(file_system, (*earlier, need))
    return list(found.values())


def nearest_file_system(context: PreflightContext, path: str) -> FileSystemInfo | None:
    """The room at a path, or at the nearest directory above it that is there."""
    while True:
        file_system = context.file_system(path or "/")
        if file_system or not path.strip("/"):
            return file_system
        path = path.rstrip("/").rpartition("/")[0]


def _judge(context: PreflightContext, volume: Volume) -> Iterator[CheckFinding]:
    file_system, title = volume.file_system, volume.title
    if file_system.read_only:
        yield error(f"The file system of {title} is read-only.", "Mount it writable: `sudo mount -o remount,rw DIR`.")
        return
    least, good = (sum(getattr(need, name) for need in volume.needs) for name in ("least", "good"))
    more = f"Make room on that file system, or put the directory elsewhere by `paths` in the configuration ({title})."
    if file_system.free < least and not context.joined:
        yield error(f"{_size(file_system.free)} is free for {title}; the node needs {_size(least)}.", more)
    elif file_system.free < good and not context.joined:
        yield warning(f"{_size(file_system.free)} is free for {title}; {_size(good)} is a good start.", more)
    if file_system.inodes and file_system.inodes_free < MIN_INODES:
        yield error(
            f"Only {file_system.inodes_free} more files fit on the file system of {title}.", "Remove small files."
        )
    for signal in eviction_signals(volume, context.config.node.kubelet.eviction_hard):
        yield warning(
            f"The file system of {title} is so full ({_share(file_system)} free) that the node would be under disk"
            f" pressure from the start ({signal}).",
            "Make room on it, or change node.kubelet.evictionHard.",
        )


def eviction_signals(volume: Volume, thresholds: Mapping[str, str]) -> list[str]:
    """The eviction signals that would fire at once."""
    file_system, signals = volume.file_system, {need.signal for need in volume.needs}
    limits = {f"{signal}.available": (file_system.free, file_system.size) for signal in sorted(signals)}
    if "nodefs" in signals:
        limits["nodefs.inodesFree"] = (file_system.inodes_free, file_system.inodes)
    return [
        f"{signal} < {thresholds[signal]}"
        for signal, (free, whole) in limits.items()
        if whole and free < threshold_bytes(thresholds.get(signal, ""), whole)
    ]


def threshold_bytes(text: str, whole: int) -> float:
    """What a threshold such as `10%` or `1Gi` comes to; nothing when it says nothing."""
    if found := re.fullmatch(r"([\d.]+)%", text):
        return float(found[1]) / 100 * whole
    found = re.fullmatch(r"([\d.]+)([kMGT]?i?)", text)
    return float(found[1]) * UNITS.get(found[2], 0) if found else 0.0


def _programs_run(context: PreflightContext) -> Iterator[CheckFinding]:
    path = context.config.paths.install_dir
    file_system = nearest_file_system(context, path)
    if file_system and file_system.noexec:
        yield error(
            f"No program can run from {path}: its file system is mounted noexec.",
            "Remount it with `sudo mount -o remount,exec DIR`, or set paths.installDir to another place.",
        )


def _images_fit(context: PreflightContext) -> Iterator[CheckFinding]:
    path = context.config.paths.containerd_dir
    kind = file_system_type(context.text("/proc/self/mountinfo"), path)
    if kind in UNSUPPORTED_FILE_SYSTEMS:
        yield error(
            f"containerd cannot keep images at {path}: overlayfs does not work on {kind}.",
            "Mount a file system such as ext4 or XFS there, or set paths.containerdDir to another place.",
        )
    elif kind == "tmpfs":
        yield warning(f"{path} is in memory (tmpfs): images are lost at every boot.", "Mount a disk there.")


def file_system_type(mountinfo: str, path: str) -> str:
    """The type of the file system that a path is on, by the mount point nearest above it."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) > 4 and (f"{path}/").startswith(f"{fields[4].rstrip('/')}/") and len(fields[4]) >= len(best):
            best, kind = fields[4], right.split(" ")[0]
    return kind


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count // MIB} MiB"


def _share(file_system: FileSystemInfo) -> str:
    return f"{100 * file_system.free // max(file_system.size, 1)} %"
