"""Runs the host suite on a lab machine: systemd, kernel, mounts."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import aks_flex_node
from aks_flex_lab.files import file_lock
from aks_flex_lab.node_agent import PYTHONS
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]

PLACE = "root/host-tests"
PACKAGE = Path(aks_flex_node.__file__).parent
CHECKOUT = PACKAGE.parents[1]
NEEDED = ("exceptiongroup", "iniconfig", "packaging", "pluggy", "pygments", "pytest", "tomli", "typing-extensions")


def test_host_test_suite_passes_on_lab_machine(add_machine: Add) -> None:
    machine = add_machine("hosts")
    copy_suite(machine)

    words = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-W", "error", "-rs")
    env = ("env", f"--chdir=/{PLACE}", f"PYTHONPATH=/{PLACE}", "AKS_FLEX_MAY_CHANGE_THIS_MACHINE=1")
    done = machine.run(*env, "python3", "-m", "pytest", *words, "tests/hosts/real.py", check=False, timeout=400)

    passed = re.search(r"(\d+) passed", done.out)
    assert done.ok, done.out + done.err
    assert passed, done.out
    assert int(passed[1]) > 40, done.out
    assert "skipped" not in done.out, done.out


def copy_suite(machine: EdgeMachine) -> None:
    """Copies pytest, the host package and its suite into a machine."""
    place = Path(f"/proc/{machine.main_pid()}/root/{PLACE}")
    shutil.copytree(pytest_tree(machine), place)
    shutil.copytree(CHECKOUT / "tests/hosts", place / "tests/hosts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(PACKAGE / "host", place / "aks_flex_node/host", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "atomic_file.py", "errors.py", "lean_dataclass.py"):
        shutil.copy(PACKAGE / name, place / "aks_flex_node" / name)


def pytest_tree(machine: EdgeMachine) -> Path:
    """Returns the pinned pytest for the machine's Python, from the cache if possible."""
    python, pins = PYTHONS[machine.record.system], pinned((CHECKOUT / "requirements/dev.txt").read_text())
    shelf = machine.layout.cache / "pytest"
    tree = shelf / f"{python}-{hashlib.sha256(pins.encode()).hexdigest()[:12]}"
    with file_lock(shelf / ".lock", "pytest for machines", wait=True):
        if not tree.exists():
            parcel = shelf / f".{tree.name}.partial"
            shutil.rmtree(parcel, ignore_errors=True)
            install(pins, parcel, python)
            parcel.rename(tree)
    return tree


def install(pins: str, place: Path, python: str) -> None:
    list_of_pins = place.with_name(f"{place.name}.txt")
    list_of_pins.write_text(pins)
    uv = Path(sys.executable).parent / "uv"
    words = ("--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--link-mode", "copy")
    run(uv, "pip", "install", *words, "--target", place, "--python-version", python, "-r", list_of_pins, timeout=300)
    list_of_pins.unlink()


def pinned(requirements: str) -> str:
    """Returns the lines of a requirements file that pytest needs, with their hashes."""
    blocks = re.split(r"(?m)^(?=\S)", requirements)
    return "".join(block for block in blocks if block.partition("==")[0] in NEEDED)
