"""Tests of the lab's images in Debian's docker-registry: pushed by the lab, pulled with curl."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import ssl
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.errors import ComponentError
from aks_flex_lab.images.builder import INDEX_TYPE, MANIFEST_TYPE, ImagePrograms, TaggedImage, lab_images
from aks_flex_lab.images.registry import Connect, push_images
from aks_flex_lab.kernel.namespaces import NetworkNamespace
from aks_flex_lab.processes import run
from aks_flex_lab.supervisor import NamespaceConnection
from aks_flex_lab.tools.recipes import machine_arch

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.pki import CertificateAuthority

HOST = "registry.lab"
BUSYBOX = Path("/bin/busybox")


def over_socket(open_socket: Callable[[], socket.socket], host: str) -> Connect:
    """Returns connections over sockets that the caller opens, including TLS."""

    class Opened(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = open_socket()

    return lambda: Opened(host)


@pytest.fixture(scope="module")
def images() -> tuple[TaggedImage, ...]:
    """Returns the lab's images; pause can be any static program, because nothing is run."""
    return lab_images({machine_arch(): ImagePrograms(BUSYBOX, BUSYBOX)})


@pytest.fixture
def connect(authority: CertificateAuthority, registry_port: int) -> Connect:
    """Opens the socket for the client, as the lab does for a registry in a network namespace."""
    trust = ssl.create_default_context(cafile=str(authority.certificate))

    def open_socket() -> socket.socket:
        return trust.wrap_socket(socket.create_connection(("127.0.0.1", registry_port)), server_hostname=HOST)

    return over_socket(open_socket, HOST)


def pull(authority: CertificateAuthority, port: int, path: str, into: Path) -> bytes:
    where = ("--resolve", f"{HOST}:{port}:127.0.0.1", "--noproxy", "*", "--cacert", authority.certificate)
    asked = ("-H", f"Accept: {INDEX_TYPE}, {MANIFEST_TYPE}", "-o", into, f"https://{HOST}:{port}/v2/{path}")
    run("curl", "-fsS", *where, *asked)
    return into.read_bytes()


class Loopback(NetworkNamespace):
    """The namespace of this process."""

    def connect(self, host: str, port: int, seconds: float = 2) -> socket.socket:
        return socket.create_connection((host, port), seconds)


def test_slow_registry_has_the_time_limit_of_a_push(authority: CertificateAuthority, registry_port: int) -> None:
    trust = ssl.create_default_context(cafile=str(authority.certificate))
    with closing(NamespaceConnection(Loopback(""), "127.0.0.1", registry_port, HOST, trust)) as connection:
        connection.connect()
        assert connection.sock.gettimeout() == connection.timeout == 60


def test_pulled_image_matches_pushed_image(
    authority: CertificateAuthority,
    connect: Connect,
    registry_port: int,
    images: tuple[TaggedImage, ...],
    tmp_path: Path,
) -> None:
    push_images(connect, images)
    for each in images:
        manifest = pull(authority, registry_port, f"{each.repository}/manifests/{each.tag}", tmp_path / "m")
        assert f"sha256:{hashlib.sha256(manifest).hexdigest()}" == each.image.digest
        parts: dict[str, Any] = json.loads(manifest)
        for part in (parts["config"], *parts["layers"]):
            blob = pull(authority, registry_port, f"{each.repository}/blobs/{part['digest']}", tmp_path / "b")
            assert f"sha256:{hashlib.sha256(blob).hexdigest()}" == part["digest"]
            assert len(blob) == part["size"]


def test_test_image_contains_shell_web_page_and_tools(
    authority: CertificateAuthority,
    connect: Connect,
    registry_port: int,
    images: tuple[TaggedImage, ...],
    tmp_path: Path,
) -> None:
    push_images(connect, images)
    manifest = json.loads(pull(authority, registry_port, "flex/test/manifests/1", tmp_path / "m"))
    config = json.loads(
        pull(authority, registry_port, f"flex/test/blobs/{manifest['config']['digest']}", tmp_path / "c")
    )
    assert (config["os"], config["architecture"]) == ("linux", machine_arch())
    pull(authority, registry_port, f"flex/test/blobs/{manifest['layers'][0]['digest']}", tmp_path / "l")
    root = tmp_path / "root"
    root.mkdir()
    run("tar", "-xzf", tmp_path / "l", "-C", root)
    for tool in ("bin/sh", "usr/sbin/httpd", "usr/bin/wget", "usr/bin/nslookup", "bin/sleep", "usr/bin/nc"):
        assert (root / tool).resolve() == root / "bin/busybox"
    assert (root / "sbin/ip").resolve() == (root / "bin/ping").resolve() == root / "bin/busybox"
    assert "It works" in (root / "www/index.html").read_text()
    assert run(root / "bin/sh", "-c", "echo hello from $0").out == f"hello from {root}/bin/sh\n"


def test_second_push_uploads_nothing(connect: Connect, images: tuple[TaggedImage, ...]) -> None:
    push_images(connect, images)
    assert push_images(connect, images) == 0


def test_image_of_another_architecture_is_pulled_by_its_index(
    authority: CertificateAuthority, connect: Connect, registry_port: int, tmp_path: Path
) -> None:
    images = lab_images({arch: ImagePrograms(BUSYBOX, BUSYBOX) for arch in (machine_arch(), "riscv64")})
    assert push_images(connect, images) == len(images)
    assert push_images(connect, images) == 0
    index = json.loads(pull(authority, registry_port, "flex/test/manifests/1", tmp_path / "i"))
    for part in index["manifests"]:
        manifest = json.loads(pull(authority, registry_port, f"flex/test/manifests/{part['digest']}", tmp_path / "m"))
        config = f"flex/test/blobs/{manifest['config']['digest']}"
        found = json.loads(pull(authority, registry_port, config, tmp_path / "c"))["architecture"]
        assert found == part["platform"]["architecture"]


def test_changed_image_replaces_its_tag(connect: Connect, images: tuple[TaggedImage, ...]) -> None:
    push_images(connect, images)
    pause, test = images[0], images[-1]
    assert push_images(connect, [TaggedImage(pause.repository, pause.tag, test.image)]) == 1
    assert push_images(connect, images) == 1


def test_unreachable_registry_is_reported(images: tuple[TaggedImage, ...]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        host, port = nobody.getsockname()
        with pytest.raises(ComponentError, match="registry does not respond"):
            push_images(lambda: http.client.HTTPConnection(host, port), images)
