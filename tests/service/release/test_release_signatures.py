"""Attacks on releases of the agent: what self-update and install.sh refuse, with nothing changed."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.processes import run
from aks_flex_node.agent.artifacts.model import ArtifactTree
from aks_flex_node.agent.artifacts.release_signature import dearmor, read_key, signed_digest, trusted_keys
from aks_flex_node.agent.artifacts.store import ArtifactStore
from aks_flex_node.agent.artifacts.trust import LocalDigests
from aks_flex_node.agent.components.service.release import signed_artifact
from aks_flex_node.agent.http.download_options import DownloadOptions
from aks_flex_node.errors import ArtifactError
from release import build_steps
from release.checkout import ReleaseError
from tests.remedies.catalogue import advice
from tests.service.agent.http_fakes import archive
from tests.service.http_servers import Handler, listening
from tests.service.release.publisher import Signer, Site, publish

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority

NAME = "aks-flex-node-1.2.3-linux-amd64.tar.gz"
OLD_NAME = "aks-flex-node-1.0.0-linux-amd64.tar.gz"


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signer]:
    signer = Signer(tmp_path_factory.mktemp("gpg") / "home")
    signer.make()
    yield signer
    signer.stop()


def make_key(owner: str, *options: str, lifetime: str = "never") -> str:
    words = ("--passphrase", "", "--quick-generate-key", owner, "ed25519", "sign", lifetime)
    run("gpg", "--batch", *options, *words)
    return owner


def exported(owner: str) -> bytes:
    """Returns a public key in binary form, through its armored form."""
    return dearmor(run("gpg", "--batch", "--armor", "--export", owner).out)


@dataclass
class Release:
    """A release on a server that an attacker may control."""

    folder: Path
    base: str
    room: Path

    def update(self, keys: bytes, name: str = NAME, digest: str = "") -> None:
        """Installs the archive as self-update does."""
        url = f"{self.base}/{name}"
        hashes = {name: digest} if digest else {}
        wanted = signed_artifact("1.2.3", url, f"https://github.com/{NAME}", hashes)
        tree = ArtifactTree("agent", "1.2.3", (wanted,), self.room / "agent")
        options = DownloadOptions(attempts=1, stall_seconds=5.0)
        store = ArtifactStore(self.room / "cache", options, digests=LocalDigests(release_keys=keys))
        try:
            store.wait(tree, 60)
        finally:
            store.close()

    def refusal(self, keys: bytes, name: str = NAME) -> ArtifactError:
        with pytest.raises(ArtifactError) as caught:
            self.update(keys, name)
        assert not (self.room / "agent").exists()
        return caught.value


@pytest.fixture
def release(
    signer: Signer, authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Release]:
    """Yields a release that the functions of `make release` have signed, on a server that the system trusts."""
    monkeypatch.setenv("GNUPGHOME", str(signer.home))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    folder = tmp_path / "release"
    folder.mkdir()
    (folder / NAME).write_bytes(archive({"bin/aks-flex-node": b"#!/bin/sh\n", "lib/x": b""}))
    build_steps.write_and_sign_sums(folder, signer.name)

    class Files(Handler):
        def do_GET(self) -> None:  # noqa: N802 - http.server's name
            path = folder / self.path.rpartition("/")[2]
            content = path.read_bytes() if path.is_file() else b""
            self.send_response(200 if path.is_file() else 404)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with listening(Files, authority.issue("release", "release", names=("localhost",))) as base:
        yield Release(folder, base, tmp_path)


def test_signed_release_is_installed_by_self_update(release: Release, signer: Signer) -> None:
    release.update(exported(signer.name))
    assert (release.room / "agent/bin/aks-flex-node").read_bytes() == b"#!/bin/sh\n"


def test_release_of_the_next_key_is_accepted(release: Release, signer: Signer) -> None:
    """During a rotation, the agent ships both keys."""
    following = make_key("next@example.com")
    build_steps.write_keys([signer.name, following], release.room / "keys.gpg")
    build_steps.sign(release.folder, following)
    release.update(trusted_keys(release.room / "keys.gpg", release.room / "none"))


def test_changed_archive_is_refused(release: Release, signer: Signer) -> None:
    (release.folder / NAME).write_bytes(b"evil")
    assert release.refusal(exported(signer.name)).name == "artifact-checksum-mismatch"


def test_changed_checksum_list_is_refused(release: Release, signer: Signer) -> None:
    """The attacker replaces the archive and the list, but has no key."""
    (release.folder / NAME).write_bytes(b"evil")
    build_steps.write_sums(release.folder)
    error = release.refusal(exported(signer.name))
    assert error.name == "release-signature-invalid"
    assert "does not match the list" in error.message


def test_release_of_another_key_is_refused(release: Release, signer: Signer) -> None:
    build_steps.sign(release.folder, make_key("evil@example.com"))
    assert "a key that this machine does not trust" in release.refusal(exported(signer.name)).message


@pytest.mark.remedy("release-signature-invalid")
@pytest.mark.parametrize("way", ["signed with a key of this machine", "`SHA256SUMS.asc`", "copy the public key"])
def test_release_is_signed_with_a_key_of_the_machine(release: Release, signer: Signer, way: str) -> None:
    own = release.room / "release-keys"
    own.mkdir(mode=0o755)
    (own / "first.gpg").write_bytes(exported(signer.name))
    if way == "`SHA256SUMS.asc`":
        (release.folder / "SHA256SUMS.asc").unlink()
    else:
        build_steps.sign(release.folder, make_key(f"own-{len(way)}@example.com"))
    assert release.refusal(trusted_keys(release.room / "none", own)).name == "release-signature-invalid"
    advice("release-signature-invalid", way)
    if way == "copy the public key":
        (own / "ours.gpg").write_bytes(exported(f"own-{len(way)}@example.com"))
    else:
        build_steps.write_and_sign_sums(release.folder, signer.name)
    release.update(trusted_keys(release.room / "none", own))


def test_key_file_that_others_can_change_is_repaired(tmp_path: Path, signer: Signer) -> None:
    key = tmp_path / "ours.gpg"
    for damage in ("mode", "content"):
        words = ("gpg", "--batch", "--yes", "--armor", "--output", key, "--export", signer.name)
        run(*words, env=signer.env)
        if damage == "mode":
            key.chmod(0o666)
        else:
            key.write_text(key.read_text().replace("\n\n", "\n\n!"))
        with pytest.raises(ArtifactError) as refused:
            read_key(key)
        assert refused.value.name == "release-key-invalid"
        run(*words, env=signer.env)
        run("chmod", "go-w", str(key))
        assert read_key(key)


def test_missing_signature_is_refused(release: Release, signer: Signer) -> None:
    (release.folder / "SHA256SUMS.asc").unlink()
    assert release.refusal(exported(signer.name)).name == "release-signature-invalid"


def test_unsigned_build_is_refused(release: Release, signer: Signer) -> None:
    (release.folder / "SHA256SUMS.asc").unlink()
    build_steps.write_and_sign_sums(release.folder, None)
    assert (release.folder / "SHA256SUMS.unsigned").exists()
    assert release.refusal(exported(signer.name)).name == "release-signature-invalid"


def test_older_release_served_as_a_newer_one_is_refused(release: Release, signer: Signer) -> None:
    """The old release is signed as well; its list names another version."""
    (release.folder / NAME).rename(release.folder / OLD_NAME)
    build_steps.write_and_sign_sums(release.folder, signer.name)
    (release.folder / OLD_NAME).rename(release.folder / NAME)
    assert f"does not contain {NAME}" in release.refusal(exported(signer.name)).message


def test_machine_without_keys_refuses_every_release(release: Release) -> None:
    assert "no key to verify it" in release.refusal(b"").message


def expired() -> str:
    past = ("--faked-system-time", "20200101T000000")
    return make_key("expired@example.com", *past, lifetime="1y")


def revoked(home: Path) -> str:
    owner = make_key("revoked@example.com")
    lines = run("gpg", "--batch", "--with-colons", "--list-keys", owner).out.splitlines()
    print_ = next(line.split(":")[9] for line in lines if line.startswith("fpr:"))
    prepared = home / "openpgp-revocs.d" / f"{print_}.rev"
    (home / "revoke.asc").write_text(prepared.read_text().replace(":-----BEGIN", "-----BEGIN"))
    return owner


@pytest.mark.parametrize("kind", ["expired", "revoked"])
def test_key_that_is_no_longer_valid_is_refused(release: Release, signer: Signer, tmp_path: Path, kind: str) -> None:
    """gpgv accepts such signatures with exit code 0."""
    folder = release.folder
    (folder / "SHA256SUMS.asc").unlink()
    sums, signature = folder / "SHA256SUMS", folder / "SHA256SUMS.asc"
    owner = expired() if kind == "expired" else revoked(signer.home)
    past = ("--faked-system-time", "20200201T000000") if kind == "expired" else ()
    run("gpg", "--batch", *past, "--local-user", owner, "--armor", "--output", signature, "--detach-sign", sums)
    if kind == "revoked":
        run("gpg", "--batch", "--import", signer.home / "revoke.asc")
    why = {"expired": "its key has expired", "revoked": "its key is revoked"}[kind]
    assert why in release.refusal(exported(owner)).message

    # install.sh refuses it, too.
    site = Site(publish(tmp_path / "debs", "1.2.3", signer.name), tmp_path / "root", tmp_path / "programs")
    site.prepare()
    (site.release / "SHA256SUMS.asc").unlink()
    listed, made = site.release / "SHA256SUMS", site.release / "SHA256SUMS.asc"
    if kind == "revoked":
        shutil.copy(signature, made)
        shutil.copy(sums, listed)
    else:
        run("gpg", "--batch", *past, "--local-user", owner, "--armor", "--output", made, "--detach-sign", listed)
    (tmp_path / "key.gpg").write_bytes(exported(owner))
    said = site.install("--yes", "--key", str(tmp_path / "key.gpg"))
    assert not said.ok
    assert "is expired or revoked" in said.err
    assert not site.command.exists()


def test_key_of_the_administrator_must_belong_to_root(tmp_path: Path, signer: Signer) -> None:
    own = tmp_path / "release-keys"
    own.mkdir(mode=0o755)
    key = own / "ours.asc"
    key.write_text(run("gpg", "--batch", "--armor", "--export", signer.name, env=signer.env).out)
    assert trusted_keys(tmp_path / "none", own)
    key.chmod(0o666)
    with pytest.raises(ArtifactError, match="can be changed by other users"):
        trusted_keys(tmp_path / "none", own)


def test_administrator_digest_permits_an_unsigned_build(release: Release) -> None:
    """A person on the machine decides about a build of their own."""
    (release.folder / "SHA256SUMS.asc").unlink()
    (line,) = (release.folder / "SHA256SUMS").read_text().splitlines()
    release.update(b"", digest=line.split()[0])


def test_release_with_a_key_that_the_agent_does_not_ship_is_not_made(release: Release, signer: Signer) -> None:
    with pytest.raises(ReleaseError, match="scripts/release-keys"):
        build_steps.require_shipped(signer.name, release.room / "none.gpg")
    build_steps.write_keys([signer.name, make_key("after@example.com")], release.room / "keys.gpg")
    build_steps.require_shipped(signer.name, release.room / "keys.gpg")


def test_signature_of_something_else_is_not_accepted(release: Release, signer: Signer) -> None:
    signature = (release.folder / "SHA256SUMS.asc").read_bytes()
    with pytest.raises(ArtifactError):
        signed_digest(f"{'0' * 64}  {NAME}\n".encode(), signature, NAME, exported(signer.name))


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="dpkg installs as root alone")
