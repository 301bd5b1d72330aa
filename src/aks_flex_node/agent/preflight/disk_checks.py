"""Check of the file systems that a node writes to: free space, inodes, mount options and type."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight.check import CheckFinding, PreflightContext, error, ok, warning
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aks_flex_node.agent.preflight.interfaces import FileSystemInfo

MIB, GIB = 1 << 20, 1 << 30
MIN_INODES = 10_000
UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 1 << 10, "Mi": MIB, "Gi": GIB, "Ti": 1 << 40}
# containerd uses overlayfs for layers, which does not work on these file systems.
UNSUPPORTED_FILE_SYSTEMS = {"overlay", "nfs", "nfs4", "cifs", "vfat", "exfat", "9p", "fuseblk", "squashfs"}


@frozen
class SpaceRequirement:
    """The disk space that a directory needs."""

    path: str
    least: int
    good: int
    signal: str = "nodefs"  # name of the file system in eviction signals


@frozen
class Volume:
    """A file system and the requirements of the directories on it."""

    file_system: FileSystemInfo
    needs: tuple[SpaceRequirement, ...]

    @property
    def title(self) -> str:
        paths = [need.path for need in self.needs]
        return ", ".join(paths[:2]) + (f" and {len(paths) - 2} more" if len(paths) > 2 else "")


def check_disk(context: PreflightContext) -> Iterator[CheckFinding]:
    found = volumes(context)
    problems = [finding for volume in found for finding in _check_volume(context, volume)]
    problems += [*_programs_run(context), *_images_fit(context)]
    yield from problems
    if not problems:
        yield ok(", ".join(f"{_size(volume.file_system.free)} free for {volume.title}" for volume in found))


def volumes(context: PreflightContext) -> list[Volume]:
    """Returns the file systems of the node's directories, without duplicates."""
    found: dict[int, Volume] = {}
    paths = context.config.paths
    for need in (
        SpaceRequirement(paths.install_dir, 768 * MIB, 1536 * MIB),
        SpaceRequirement(paths.data_dir, 256 * MIB, 512 * MIB),
        SpaceRequirement(paths.containerd_dir, 1 * GIB, 4 * GIB, "imagefs"),
        SpaceRequirement(paths.kubernetes.kubelet_dir, 128 * MIB, 256 * MIB),
        SpaceRequirement(paths.log_dir, 32 * MIB, 128 * MIB),
    ):
        file_system = nearest_file_system(context, need.path)
        if file_system:
            earlier = found[file_system.device].needs if file_system.device in found else ()
            found[file_system.device] = Volume(file_system, (*earlier, need))
    return list(found.values())


def nearest_file_system(context: PreflightContext, path: str) -> FileSystemInfo | None:
    """Returns the file system at a path, or at its nearest existing parent."""
    while True:
        file_system = context.file_system(path or "/")
        if file_system or not path.strip("/"):
            return file_system
        path = path.rstrip("/").rpartition("/")[0]


def _check_volume(context: PreflightContext, volume: Volume) -> Iterator[CheckFinding]:
    file_system, title = volume.file_system, volume.title
    if file_system.read_only:
        yield error(f"The file system of {title} is read-only.", "Mount it writable: `sudo mount -o remount,rw DIR`.")
        return
    least, good = (sum(getattr(need, name) for need in volume.needs) for name in ("least", "good"))
    remedy = f"Free space on this file system, or move the directory with `paths` in the configuration ({title})."
    if file_system.free < least and not context.joined:
        yield error(f"{_size(file_system.free)} is free for {title}, but the node needs {_size(least)}.", remedy)
    elif file_system.free < good and not context.joined:
        yield warning(f"{_size(file_system.free)} is free for {title}, but {_size(good)} is recommended.", remedy)
    if file_system.inodes and file_system.inodes_free < MIN_INODES:
        yield error(
            f"Only {file_system.inodes_free} inodes are free on the file system of {title}.", "Remove files from it."
        )
    share = 100 * file_system.free // max(file_system.size, 1)
    for signal in eviction_signals(volume, context.config.node.kubelet.eviction_hard):
        yield warning(
            f"The file system of {title} is almost full ({share} % free), so the node would start under "
            f"disk pressure ({signal}).",
            "Free space on it, or change `node.kubelet.evictionHard`.",
        )


def eviction_signals(volume: Volume, thresholds: Mapping[str, str]) -> list[str]:
    """Returns the eviction signals that would be active immediately."""
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
    """Converts a threshold such as `10%` or `1Gi` to bytes. Returns 0 if it is not valid."""
    if found := re.fullmatch(r"([\d.]+)%", text):
        return float(found[1]) / 100 * whole
    found = re.fullmatch(r"([\d.]+)([kMGT]?i?)", text)
    return float(found[1]) * UNITS.get(found[2], 0) if found else 0.0


def _programs_run(context: PreflightContext) -> Iterator[CheckFinding]:
    path = context.config.paths.install_dir
    file_system = nearest_file_system(context, path)
    if file_system and file_system.noexec:
        yield error(
            f"Programs cannot run from {path}: its file system is mounted noexec.",
            "Remount it with `sudo mount -o remount,exec DIR`, or set `paths.installDir` to another directory.",
        )


def _images_fit(context: PreflightContext) -> Iterator[CheckFinding]:
    path = context.config.paths.containerd_dir
    kind = file_system_type(context.text("/proc/self/mountinfo"), path)
    if kind in UNSUPPORTED_FILE_SYSTEMS:
        yield error(
            f"containerd cannot store images in {path}: overlayfs does not work on {kind}.",
            "Mount a file system such as ext4 or XFS there, or set `paths.containerdDir` to another directory.",
        )
    elif kind == "tmpfs":
        yield warning(f"{path} is in memory (tmpfs): images are lost at every reboot.", "Mount a disk found.")


def file_system_type(mountinfo: str, path: str) -> str:
    """Returns the type of the file system of a path, by the nearest mount point above it."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) > 4 and (f"{path}/").startswith(f"{fields[4].rstrip('/')}/") and len(fields[4]) >= len(best):
            best, kind = fields[4], right.split(" ")[0]
    return kind


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count // MIB} MiB"
