"""The page, from what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.proof.parts import PARTS

if TYPE_CHECKING:
    from pathlib import Path

    from bench.proof.parts import Part

HEAD = """# Proof

Made by `{command}` on one machine; nothing here is written by hand. What the figures mean, how they were got to,
and what was tried in between is on the page of [benchmarks](benchmarks.md).

{machine}
"""


def write(folder: Path, found: dict[str, Any]) -> None:
    """`proof.md` in that folder, and its pictures beside it."""
    pictures = folder / "images" / "proof"
    pictures.mkdir(parents=True, exist_ok=True)
    machine = " · ".join(f"{name} {value}" for name, value in found["machine"].items())
    sections = [HEAD.format(command=found["command"], machine=machine)]
    there = [part for part in PARTS if part.name in found["parts"]]
    sections += [_section(part, found["parts"][part.name], pictures) for part in there]
    (folder / "proof.md").write_text("\n".join(sections))


def _section(part: Part, told: dict[str, Any], pictures: Path) -> str:
    measured = f"`{told['command']}`, {told['seconds']:.0f} s, commit {told['commit']}, {told['day']}."
    lines = [f"## {part.title}", "", f"{part.tells} {measured}"]
    lines += [f"Target: {each}." for each in part.targets]
    lines += ["", part.table(told["found"]).markdown(), ""]
    if part.picture:
        (pictures / f"{part.name}.svg").write_text(part.picture(told["found"]))
        lines += [f"![{part.title}](images/proof/{part.name}.svg)", ""]
    return "\n".join(lines)
