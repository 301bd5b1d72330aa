"""Collects the wheels of the package: dependencies for each Python, and the wheel of the agent."""

from __future__ import annotations

import hashlib
import io
import json
import re
import time
import zipfile
from typing import TYPE_CHECKING

from packaging.markers import Marker, default_environment

if TYPE_CHECKING:
    from pathlib import Path

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
NO_EARLIER = 315532800  # 1980, the earliest time of zip files


def requirements(text: str, python: str, arch: str) -> str:
    """Returns the pinned requirements for one Python and architecture, with hashes and without markers.

    pip evaluates markers for the Python that runs it, not for the target Python.
    """
    environment = {str(name): str(value) for name, value in default_environment().items()} | {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_machine": MACHINES[arch],
        "sys_platform": "linux",
    }
    selected = []
    for block in re.split(r"\n(?=\S)", text.strip()):
        first, _, hashes = block.partition("\n")
        name, _, marker = first.rstrip(" \\").partition(" ; ")
        if not marker or Marker(marker).evaluate(environment):
            selected.append(f"{name} \\\n{hashes}\n")
    return "".join(selected)


def package_wheels(folder: Path, source: Path, version: str, when: int) -> dict[str, bytes]:
    """Returns all wheels by name, and an index of the wheels of each Python. `folder` has one folder per Python."""
    own = f"aks_flex_node-{version}-py3-none-any.whl"
    files = {own: own_wheel(source, version, when)}
    index: dict[str, list[str]] = {}
    for python in PYTHONS:
        # glob would silently find nothing if the folder of a Python is missing.
        found = sorted(path for path in (folder / python).iterdir() if path.suffix == ".whl")
        files |= {wheel.name: wheel.read_bytes() for wheel in found}
        index["cp" + python.replace(".", "")] = [*(wheel.name for wheel in found), own]
    sums = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}
    digest = hashlib.sha256("".join(sums.values()).encode()).hexdigest()[:8]
    document = {"version": version, "digest": digest, "wheels": index, "sha256": sums}
    return {**files, "index.json": (json.dumps(document, indent=1) + "\n").encode()}


def own_wheel(source: Path, version: str, when: int) -> bytes:
    """Builds the wheel of the agent with minimal metadata."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(source.rglob("*")):
            name = path.relative_to(source)
            if path.is_dir() or "__pycache__" in name.parts:
                continue
            content = path.read_bytes()
            if str(name) == "__init__.py":
                content = re.sub(rb'__version__ = ".*"', f'__version__ = "{version}"'.encode(), content)
            archive.writestr(_info(f"aks_flex_node/{name}", when), content)
        head = f"Metadata-Version: 2.1\nName: aks-flex-node\nVersion: {version}\n"
        archive.writestr(_info(f"aks_flex_node-{version}.dist-info/METADATA", when), head)
    return buffer.getvalue()


def _info(name: str, when: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, time.gmtime(max(when, NO_EARLIER))[:6])
    info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    return info
