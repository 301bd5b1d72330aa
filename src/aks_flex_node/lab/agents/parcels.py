"""One tree of the agent for each Python, made once, kept in the cache, and copied into machines."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import aks_flex_node
from aks_flex_node.lab.errors import HostError
from aks_flex_node.lab.files import locked
from aks_flex_node.lab.machines.bases import System
from aks_flex_node.lab.processes import run

if TYPE_CHECKING:
    from aks_flex_node.lab.machines.machine import Machine

PLACE = "usr/lib/aks-flex-node"
COMMAND = "usr/bin/aks-flex-node"
PYTHONS = {System.BOOKWORM: "3.11", System.TRIXIE: "3.13"}
PACKAGE = Path(aks_flex_node.__file__).parent
REQUIREMENTS = PACKAGE.parents[1] / "requirements" / "base.txt"
LEFT_OUT = ("lab", "rp", "__pycache__")  # an edge machine has no use for them
SCRIPT = f"""#!/usr/bin/python3 -I
import sys
sys.path.insert(0, "/{PLACE}")
from aks_flex_node.agent.cli import main
main()
"""


def install(machine: Machine) -> None:
    """Put the agent of this checkout into a running machine."""
    root = Path(f"/proc/{machine.init()}/root")
    made, place = tree(machine), root / PLACE
    shutil.rmtree(place, ignore_errors=True)
    _copy(made, place)
    command = root / COMMAND
    command.write_text(SCRIPT)
    command.chmod(0o755)


def tree(machine: Machine) -> Path:
    """The agent with all that it needs, compiled for the machine's Python."""
    shelf = machine.layout.cache / "agents"
    key = f"{machine.record.system.value}-{_key()}"
    with locked(shelf / ".lock", "the agent's tree", wait=True):
        if not (shelf / key).exists():
            _make(machine, shelf / key)
    return shelf / key


def _key() -> str:
    total = hashlib.sha256(_requirements().read_bytes())
    for path in _sources():
        total.update(f"{path.relative_to(PACKAGE)}\n".encode() + path.read_bytes())
    return total.hexdigest()[:12]


def _sources() -> list[Path]:
    return sorted(
        path
        for path in PACKAGE.rglob("*")
        if path.is_file() and not set(path.relative_to(PACKAGE).parts) & set(LEFT_OUT)
    )


def _requirements() -> Path:
    if not REQUIREMENTS.exists():
        raise HostError(
            "no-checkout",
            "The agent can be brought into machines from a checkout alone.",
            "Clone the repository, run `make setup`, and use its .venv/bin/aks-flex-lab.",
        )
    return REQUIREMENTS


def _make(machine: Machine, place: Path) -> None:
    """Fetch the pinned packages, add our own, and let the machine's own Python compile them all."""
    python = PYTHONS[machine.record.system]
    parcel = place.parent / f".{place.name}.partial"
    shutil.rmtree(parcel, ignore_errors=True)
    uv = Path(sys.executable).parent / "uv"
    words = ["--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--link-mode", "copy"]
    run(
        uv,
        "pip",
        "install",
        *words,
        "--target",
        parcel,
        "--python-version",
        python,
        "-r",
        _requirements(),
        timeout=300,
    )
    for path in _sources():
        copy = parcel / "aks_flex_node" / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    _compile(machine, parcel)
    for old in place.parent.glob(f"{machine.record.system.value}-*"):
        shutil.rmtree(old)
    parcel.rename(place)


def _compile(machine: Machine, parcel: Path) -> None:
    root = Path(f"/proc/{machine.init()}/root")
    inside = root / PLACE
    shutil.rmtree(inside, ignore_errors=True)
    _copy(parcel, inside)
    machine.run("python3", "-m", "compileall", "-q", "-j2", "--invalidation-mode", "unchecked-hash", f"/{PLACE}")
    shutil.rmtree(parcel)
    _copy(inside, parcel)


def _copy(tree: Path, place: Path) -> None:
    """Three thousand files: `cp` takes a third of the time that Python would."""
    run("cp", "--archive", "--no-target-directory", tree, place, timeout=120)
