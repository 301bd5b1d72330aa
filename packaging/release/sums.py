"""The list of checksums of a release, its signature, and the installer that trusts that signature."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from aks_flex_node.lab.processes import run
from release.checkout import HOME
from release.refusals import Refused

if TYPE_CHECKING:
    from pathlib import Path

SUMS = "SHA256SUMS"
SIGNATURE = f"{SUMS}.asc"
INSTALLER = HOME / "packaging" / "install" / "install.sh"
NO_KEY = "key='@KEY@'"


def write_sums(folder: Path) -> None:
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in {SUMS, SIGNATURE})
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / SUMS).write_text("".join(lines))


def sign(folder: Path, key: str) -> None:
    """With a key of the caller's own keyring; its passphrase is the agent's business, never ours."""
    (folder / SIGNATURE).unlink(missing_ok=True)
    words = ["--batch", "--local-user", key, "--armor", "--digest-algo", "SHA512", "--detach-sign"]
    run("gpg", *words, "--output", folder / SIGNATURE, folder / SUMS, timeout=300)


def public_key(key: str, file: Path) -> bytes:
    """The public half as gpg exports it, in the smallest form that verifies."""
    run("gpg", "--batch", "--yes", "--export-options", "export-minimal", "--output", file, "--export", key)
    if not file.exists():
        raise Refused(f"gpg has no key {key}.")
    return file.read_bytes()


def installer(template: str, key: bytes | None) -> str:
    """install.sh with the key in it; without a key it asks for one."""
    if template.count(NO_KEY) != 1:
        raise Refused(f"{INSTALLER.name} has no place for the key.")
    return template if key is None else template.replace(NO_KEY, f"key='{base64.b64encode(key).decode()}'")
