"""Fixtures: real servers as processes on free loopback ports, and curl."""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.images.registry import RegistrySettings, registry_argv, registry_config
from aks_flex_lab.mirror.control import MirrorClient
from aks_flex_lab.pki import CertificateAuthority, CertificatePair
from aks_flex_lab.processes import CommandResult, run, spawn
from tests.service.lab.cloud_harness import running_cloud, running_provider
from tests.service.ports import accepts, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.service.lab.cloud_harness import Cloud

HOSTS = ("dl.k8s.io", "github.com", "registry.lab")
KUBELET = bytes(range(256)) * 4096  # 1 MiB
SUM = hashlib.sha256(KUBELET).hexdigest()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    authority = CertificateAuthority(tmp_path_factory.mktemp("pki"))
    authority.ensure()
    return authority


@pytest.fixture(scope="session")
def certificate(authority: CertificateAuthority) -> CertificatePair:
    return authority.issue("server", "server", names=HOSTS)


@pytest.fixture(scope="module")
def provider(authority: CertificateAuthority) -> Iterator[str]:
    """Yields a stand-in for the resource provider behind the lab's ARM."""
    with running_provider(authority.issue("localhost", "localhost", names=("localhost",))) as url:
        yield url


@pytest.fixture(scope="module")
def cloud(
    authority: CertificateAuthority, provider: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    """Yields the lab's Azure. Each test creates the principals that it needs."""
    with running_cloud(authority, tmp_path_factory.mktemp("cloud"), provider) as cloud:
        yield cloud


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a tree with two publishers, and files outside that must not be served."""
    outside = tmp_path_factory.mktemp("mirror")
    (outside / "secret").write_text("secret")
    tree = outside / "tree"
    files = {
        "dl.k8s.io/v1/kubelet": KUBELET,
        "dl.k8s.io/v1/kubelet.sha256": SUM.encode(),
        "dl.k8s.io/v1/empty": b"",
        "github.com/runc/runc.amd64": b"amd64",
        "github.com/runc/runc.sha256sum": f"{'a' * 64}  runc.amd64\n{'b' * 64}  runc.arm64\n".encode(),
        "github.com/runc/a b+c.tar.gz": b"odd name",
    }
    for name, content in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)
    (tree / "dl.k8s.io" / "link").symlink_to(outside / "secret")
    (tree / "dl.k8s.io" / "door").symlink_to(outside)
    return tree


@pytest.fixture(scope="session")
def ports() -> tuple[int, int]:
    """Returns the ports for TLS and for plain HTTP."""
    return free_port(), free_port()


@pytest.fixture(scope="session")
def mirror_control(
    tree: Path, certificate: CertificatePair, ports: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Yields the control socket of a mirror that all tests share."""
    room = tmp_path_factory.mktemp("run")
    control, log = room / "control.sock", room / "log"
    where = ("--listen", f"127.0.0.1:{ports[0]}", "--plain", f"127.0.0.1:{ports[1]}", "--control", control)
    what = ("--root", tree, "--cert", certificate.certificate, "--key", certificate.key)
    process = spawn((sys.executable, "-m", "aks_flex_lab.mirror", *where, *what), log=log)
    try:
        wait_until(control.is_socket, process, log)
        yield control
    finally:
        process.stop()
    assert "Traceback" not in log.read_text()


@pytest.fixture
def mirror(mirror_control: Path) -> Iterator[MirrorClient]:
    """Yields the mirror without fault rules before and after each test."""
    mirror = MirrorClient(mirror_control)
    mirror.reset()
    yield mirror
    mirror.reset()


@pytest.fixture
def curl(authority: CertificateAuthority, ports: tuple[int, int]) -> Callable[..., CommandResult]:
    """Returns `curl(option…, "host/path")`, which sends requests to the mirror; `plain=True` disables TLS."""

    def ask(*words: str | Path, plain: bool = False) -> CommandResult:
        *options, address = words
        host, _, path = str(address).partition("/")
        port = ports[1] if plain else ports[0]
        url = f"{'http' if plain else 'https'}://{host}:{port}/{path}"
        resolve = ("--resolve", f"{host}:{port}:127.0.0.1", "--noproxy", "*")
        return run("curl", "-sS", "--cacert", authority.certificate, *resolve, *options, url, check=False)

    return ask


@pytest.fixture(scope="module")
def registry_port(certificate: CertificatePair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yields the port of an empty docker-registry of Debian, configured as in the lab."""
    room, port = tmp_path_factory.mktemp("registry"), free_port()
    settings = RegistrySettings(f"127.0.0.1:{port}", room / "blobs", certificate.certificate, certificate.key)
    config, log = room / "config.yml", room / "log"
    config.write_text(registry_config(settings))
    process = spawn(registry_argv(config), log=log)
    try:
        wait_until(lambda: accepts(port), process, log)
        yield port
    finally:
        process.stop()
