"""The lab's own key for releases of the agent: made once for a cache, and trusted by the lab's machines only."""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aks_flex_lab.files import file_lock
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY_OWNER = "release@lab.example"
SUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.asc"
PUBLIC_KEY_PATH = "etc/aks-flex-node/release-keys/lab.gpg"  # in a machine


@contextmanager
def keyring(cache: Path) -> Iterator[dict[str, str]]:
    """Yields the environment of a temporary gpg home with the lab's key. Its path is short, as gpg-agent requires."""
    secret = cache / "release-key" / "secret.asc"
    with tempfile.TemporaryDirectory(prefix="lab-gpg-") as home:
        env = {"GNUPGHOME": home}
        try:
            with file_lock(cache / "release-key" / ".lock", "the lab's release key", wait=True):
                if secret.exists():
                    run("gpg", "--batch", "--quiet", "--import", secret, env=env)
                else:
                    _make_key(secret, env)
            yield env
        finally:
            run("gpgconf", "--kill", "all", env=env, check=False)


def _make_key(secret: Path, env: dict[str, str]) -> None:
    words = ("--passphrase", "", "--quick-generate-key", KEY_OWNER, "ed25519", "sign", "never")
    run("gpg", "--batch", "--quiet", *words, env=env)
    fresh = secret.with_name("secret.new")
    run("gpg", "--batch", "--yes", "--armor", "--output", fresh, "--export-secret-keys", KEY_OWNER, env=env)
    fresh.rename(secret)


def public_key(cache: Path) -> bytes:
    """Returns the public key in OpenPGP's binary form."""
    file = cache / "release-key" / "public.gpg"
    if not file.exists():
        with keyring(cache) as env:
            run("gpg", "--batch", "--yes", "--output", file, "--export", KEY_OWNER, env=env)
    return file.read_bytes()


def sign_release(folder: Path, cache: Path) -> None:
    """Writes the checksum list of a release and its signature."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in {SUMS, SIGNATURE})
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / SUMS).write_text("".join(lines))
    with keyring(cache) as env:
        words = ("--local-user", KEY_OWNER, "--armor", "--output", folder / SIGNATURE)
        run("gpg", "--batch", "--yes", "--quiet", *words, "--detach-sign", folder / SUMS, env=env)
