"""Simulated kernel tables, in the text format of the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aks_flex_node.host.disk import HostDisk


def add(disk: HostDisk, path: str, line: str) -> None:
    """Appends a line if it does not exist."""
    lines = _lines(disk, path)
    disk.at(path).write_text("".join(f"{one}\n" for one in (*lines, *([line] if line not in lines else []))))


def drop(disk: HostDisk, path: str, column: int, word: str) -> None:
    """Removes the lines that have this word in this column."""
    kept = [line for line in _lines(disk, path) if line.split()[column : column + 1] != [word]]
    disk.at(path).write_text("".join(f"{line}\n" for line in kept))


def _lines(disk: HostDisk, path: str) -> list[str]:
    return (disk.read(path) or b"").decode().splitlines()


def restored(saved: str, script: str) -> str:
    """Applies rules as `iptables-restore --noflush` does, and fails if a rule does not match."""
    lines = saved.splitlines()
    for order in script.splitlines():
        kind, _, rest = order.partition(" ")
        if kind == "-D":
            lines.remove(f"-A {rest}")
        elif kind == "-X":
            lines.remove(next(line for line in lines if line.startswith(f":{rest} ")))
        elif kind.startswith(":"):
            lines = [line for line in lines if not line.startswith(f"-A {kind[1:]} ")]
    return "".join(f"{line}\n" for line in lines)
