"""The APT repository of azcmagent, signed with a key made for it; and an unsigned and a wrongly signed one for
tests.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.architecture import Architecture
from aks_flex_lab.azcmagent import debian_package
from aks_flex_lab.azcmagent.azcm.agent_state import VERSION
from aks_flex_lab.files import file_lock
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = 2  # increase it when the layout of the repository changes
HOST = "packages.microsoft.com"
URL = f"https://{HOST}"
RELEASES = {"bookworm": "debian/12/prod", "trixie": "debian/13/prod"}
KEYS = ("keys/microsoft.asc", "keys/microsoft-2025.asc")
UNSIGNED, OTHER_KEY = "unsigned", "keys/other.asc"
ARCHITECTURES = tuple(arch.value for arch in Architecture)
POOL = f"pool/main/a/azcmagent/azcmagent_{VERSION}_all.deb"
MARKER_NAME = "made-from.json"


@dataclass(frozen=True)
class AzcmagentRepository:
    """The URLs of the repositories and keys that the mirror serves."""

    tree: Path

    def repository(self, system: str = "bookworm") -> str:
        return f"{URL}/{RELEASES[system]}"

    @property
    def unsigned(self) -> str:
        """The URL of a repository without a signature."""
        return f"{URL}/{UNSIGNED}"

    @property
    def key_url(self) -> str:
        return f"{URL}/{KEYS[0]}"

    @property
    def other_key_url(self) -> str:
        """The URL of a key that signed none of the repositories."""
        return f"{URL}/{OTHER_KEY}"

    @property
    def fingerprint(self) -> str:
        return str(self._marker()["fingerprint"])

    @property
    def other_fingerprint(self) -> str:
        return str(self._marker()["other"])

    def _marker(self) -> dict[str, str]:
        marker: dict[str, str] = json.loads((self.tree / HOST / MARKER_NAME).read_text())
        return marker


def publish_repository(tree: Path) -> AzcmagentRepository:
    """Adds the repository to a tree of the mirror, unless it is current."""
    target = tree / HOST
    with file_lock(tree.parent / ".azcmagent.lock", "the repository of azcmagent", wait=True):
        mark = target / MARKER_NAME
        if (str(json.loads(mark.read_text())["key"]) if mark.exists() else "") != _key():
            with tempfile.TemporaryDirectory(dir=tree.parent, prefix=".azcmagent-") as temporary:
                _make(Path(temporary))
                shutil.rmtree(target, ignore_errors=True)
                (Path(temporary) / HOST).rename(target)
    return AzcmagentRepository(tree)


def _key() -> str:
    return hashlib.sha256(f"{FORMAT}\n".encode() + debian_package.package_recipe()).hexdigest()[:16]


def _make(directory: Path) -> None:
    site = directory / HOST
    site.mkdir(mode=0o755)
    debian_package.build_package(directory / "package", directory / "azcmagent.deb")
    with _signer("aks-flex-lab packages") as ours, _signer("another publisher") as other:
        for suite, path in {**RELEASES, "stable": UNSIGNED}.items():
            repository = site / path
            (repository / POOL).parent.mkdir(parents=True)
            shutil.copy(directory / "azcmagent.deb", repository / POOL)
            _index(repository, suite)
            if path != UNSIGNED:
                ours.sign(repository / "dists" / suite)
        for path in KEYS:
            _put(site / path, ours.public())
        _put(site / OTHER_KEY, other.public())
        marker = {"key": _key(), "fingerprint": ours.fingerprint(), "other": other.fingerprint()}
    _put(site / MARKER_NAME, json.dumps(marker))


def _index(repository: Path, suite: str) -> None:
    """Returns the Packages and Release files."""
    package = (repository / POOL).read_bytes()
    digest = hashlib.sha256(package).hexdigest()
    entry = f"{debian_package.CONTROL}Filename: {POOL}\nSize: {len(package)}\nSHA256: {digest}\n\n"
    sums = []
    for arch in ARCHITECTURES:
        for name, content in (("Packages", entry.encode()), ("Packages.gz", gzip.compress(entry.encode(), mtime=0))):
            path = f"main/binary-{arch}/{name}"
            _put(repository / "dists" / suite / path, content)
            sums.append(f" {hashlib.sha256(content).hexdigest()} {len(content)} {path}")
    now = time.strftime("%a, %d %b %Y %H:%M:%S UTC", time.gmtime())
    head = f"Origin: lab\nLabel: lab\nSuite: {suite}\nCodename: {suite}\nDate: {now}\n"
    lists = f"Architectures: {' '.join(ARCHITECTURES)}\nComponents: main\nSHA256:\n"
    _put(repository / "dists" / suite / "Release", head + lists + "\n".join(sums) + "\n")


@dataclass(frozen=True)
class GpgSigner:
    home: Path

    def sign(self, folder: Path) -> None:
        self._gpg("--clearsign", "--output", folder / "InRelease", folder / "Release")

    def public(self) -> str:
        return self._gpg("--armor", "--export")

    def fingerprint(self) -> str:
        lines = self._gpg("--with-colons", "--list-keys").splitlines()
        return next(line.split(":")[9] for line in lines if line.startswith("fpr:"))

    def make(self, name: str) -> None:
        self._gpg("--passphrase", "", "--quick-generate-key", name, "rsa3072", "sign", "never")

    def _gpg(self, *arguments: str | Path) -> str:
        return run("gpg", "--homedir", self.home, "--batch", "--yes", "--pinentry-mode", "loopback", *arguments).out


@contextmanager
def _signer(name: str) -> Iterator[GpgSigner]:
    """Yields a signing key that exists only for the block, and stops gpg-agent at the end."""
    home = Path(tempfile.mkdtemp(prefix="flex-gpg-"))  # short, because it is part of the path of a socket
    signer = GpgSigner(home)
    try:
        signer.make(name)
        yield signer
    finally:
        run("gpgconf", "--homedir", home, "--kill", "all", check=False)
        shutil.rmtree(home, ignore_errors=True)


def _put(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
