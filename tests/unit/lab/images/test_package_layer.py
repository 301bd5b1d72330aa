"""The files of Debian packages in images."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from aks_flex_lab.images.builder import LayerDirectory, LayerFile, LayerLink
from aks_flex_lab.images.package_layer import package_entries

if TYPE_CHECKING:
    from pathlib import Path


def unpacked(cache: Path, *packages: str) -> Path:
    """Returns the directory in which the cache expects these packages, so that nothing is downloaded."""
    root = cache / "packages" / hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    root.mkdir(parents=True)
    return root


def test_files_of_packages_are_at_the_merged_paths_of_debian(tmp_path: Path) -> None:
    root = unpacked(tmp_path, "curl", "tool")
    for path in ("bin/tool", "usr/bin/curl", "lib/x86_64-linux-gnu/libc.so.6", "usr/share/doc/curl/copyright"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    (root / "bin/tool").chmod(0o4755)
    (root / "usr/bin/alias").symlink_to("curl")

    entries = package_entries(("tool", "curl"), tmp_path)

    files = {entry.path: entry for entry in entries if isinstance(entry, LayerFile)}
    links = {entry.path: entry.target for entry in entries if isinstance(entry, LayerLink)}
    assert set(files) == {"usr/bin/tool", "usr/bin/curl", "usr/lib/x86_64-linux-gnu/libc.so.6"}
    assert files["usr/bin/tool"].mode == 0o4755
    assert links == {
        "/bin": "usr/bin",
        "/sbin": "usr/sbin",
        "/lib": "usr/lib",
        "/lib64": "usr/lib64",
        "usr/bin/alias": "curl",
    }
    assert "bin" not in {entry.path for entry in entries if isinstance(entry, LayerDirectory)}
