"""Attacks of a mirror, and of somebody who chooses the mirror: no program runs that its publisher did not publish."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_node.agent.artifacts.digest import Digest
from aks_flex_node.agent.artifacts.trust import LocalDigests, load_local_digests
from tests.service.agent.http_fakes import KUBELET, Publisher, refusal
from tests.service.http_servers import Handler, listening
from tests.service.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_node.agent.artifacts.model import Artifact

EVIL = b"#!/bin/sh\nid\n"
EVIL_HASH = hashlib.sha256(EVIL).hexdigest()


class EvilMirror(Handler):
    """Serves another program for every path, with a checksum file that matches it."""

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        content = EVIL_HASH.encode() if "sha" in self.path.rpartition("/")[2] else EVIL
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def mirror_authority(tmp_path: Path) -> CertificateAuthority:
    made = CertificateAuthority(tmp_path / "mirror-pki")
    made.ensure()
    return made


@pytest.fixture
def evil(mirror_authority: CertificateAuthority) -> Iterator[str]:
    """Yields the URL of the mirror. Its CA is that of `artifacts.caFile`, and not of the system."""
    with listening(EvilMirror, mirror_authority.issue("localhost", "localhost", names=("localhost",))) as url:
        yield url


@pytest.fixture
def ca(mirror_authority: CertificateAuthority) -> str:
    return str(mirror_authority.certificate)


def away(publisher: Publisher) -> Artifact:
    """Returns the kubelet of a publisher that this machine does not reach."""
    url = f"https://127.0.0.1:{free_port()}/kubelet"
    return publisher.kubelet(url=url, publisher_url=url, checksums=(f"{url}.sha256",))


def test_mirror_with_matching_checksum_of_another_program_is_refused(
    publisher: Publisher, evil: str, ca: str
) -> None:
    error = publisher.refuses(base_url=evil, ca_file=ca)
    assert error.name == "artifact-checksum-mismatch"
    assert hashlib.sha256(KUBELET).hexdigest() in error.message
    assert not list(publisher.room.glob("cache/*/kubelet"))


def test_checksum_of_mirror_is_not_used_if_publisher_is_away(publisher: Publisher, evil: str, ca: str) -> None:
    error = publisher.refuses(away(publisher), base_url=evil, ca_file=ca, attempts=1)
    assert (error.name, error.retryable) == ("artifact-checksum-missing", True)
    assert "refused the connection" in error.message
    assert "aks-flex-node artifacts pins" in error.hint


def test_url_of_another_file_name_needs_a_local_digest(publisher: Publisher, evil: str, ca: str) -> None:
    artifact = replace(publisher.kubelet(), url=f"{evil}/renamed", publisher_url="", checksums=())
    assert publisher.refuses(artifact, ca_file=ca).name == "artifact-checksum-missing"
    pinned = replace(artifact, digest=EVIL_HASH)
    assert publisher.fetch(pinned, ca_file=ca)


def test_ca_of_the_mirror_cannot_impersonate_the_publisher(publisher: Publisher, evil: str, ca: str) -> None:
    """The attacker controls the way to the publisher, and has a certificate of the CA in `artifacts.caFile`."""
    artifact = publisher.kubelet(url=f"{evil}/kubelet", publisher_url=f"{evil}/kubelet", checksums=(f"{evil}/sha",))
    error = publisher.refuses(artifact, ca_file=ca)
    assert error.name == "artifact-unreachable"
    assert "not trusted" in error.message


def test_digest_of_the_administrator_is_not_served_as_the_publishers(
    publisher: Publisher, evil: str, ca: str
) -> None:
    pinned = replace(publisher.kubelet(), digest=EVIL_HASH)
    assert publisher.fetch(pinned, base_url=evil, ca_file=ca)
    tree = publisher.tree(publisher.kubelet(), component="later")
    publisher.store().wait(tree, 60)
    assert (tree.staging / "bin/kubelet").read_bytes() == KUBELET


@pytest.mark.parametrize("source", ["administrator", "pins"])
def test_mirror_works_without_publisher_if_digest_is_known(publisher: Publisher, source: str) -> None:
    artifact = replace(away(publisher), url=publisher.url("kubelet"))
    digest = {artifact.publisher_url: Digest("sha256", hashlib.sha256(KUBELET).hexdigest())}
    known = LocalDigests(pins=digest) if source == "pins" else LocalDigests(administrator=digest)
    store = publisher.store(digests=known)
    assert store.wait(publisher.tree(artifact), 60)
    manifest = json.loads((publisher.tree(artifact).staging / ".manifest.json").read_text())
    assert [each["digest_source"] for each in manifest["artifacts"]] == [source.removesuffix("s")]


def test_known_digest_refuses_the_program_of_the_mirror(publisher: Publisher, evil: str, ca: str) -> None:
    artifact = away(publisher)
    known = LocalDigests(pins={artifact.publisher_url: Digest("sha256", hashlib.sha256(KUBELET).hexdigest())})
    store = publisher.store(base_url=evil, ca_file=ca, digests=known)
    assert refusal(store, publisher.tree(artifact)).name == "artifact-checksum-mismatch"


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (f"{EVIL_HASH}  https://dl.k8s.io/kubelet\n", 0o666, "can be changed by other users than root"),
        ("kubelet\n", 0o644, "has an invalid line: kubelet"),
        (f"{EVIL_HASH}  http://dl.k8s.io/kubelet\n", 0o644, "has an invalid line"),
        (f"{'0' * 64}  https://a/b\n{'1' * 64}  https://a/b\n", 0o644, "has an invalid line"),
    ],
)
def test_unsafe_checksums_file_stops_all_downloads(tmp_path: Path, content: str, mode: int, why: str) -> None:
    file = tmp_path / "checksums.txt"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(Exception, match=why):
        load_local_digests(str(file))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_checksums_file_of_another_user_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "checksums.txt"
    file.write_text(f"{EVIL_HASH}  https://dl.k8s.io/kubelet\n")
    os.chown(file, 1000, 1000)
    with pytest.raises(Exception, match="can be changed by other users"):
        load_local_digests(str(file))
