"""Fixtures: a publisher of programs, which is the lab's mirror on loopback with faults on request."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.mirror.control import MirrorClient
from aks_flex_lab.processes import spawn
from tests.service.agent.daemon.fake_providers import serving
from tests.service.agent.http_fakes import Publisher, Server, published, until
from tests.service.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority, CertificatePair


@pytest.fixture(scope="session")
def publishing(pair: CertificatePair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yields a mirror for all tests."""
    room = tmp_path_factory.mktemp("publisher")
    for name, content in published().items():
        file = room / "tree" / "localhost" / "v1" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    server = Server(f"https://localhost:{free_port()}", room / "control.sock", room / "log")
    where = ("--listen", server.base.replace("https://localhost", "127.0.0.1"), "--control", server.control)
    what = ("--root", room / "tree", "--cert", pair.certificate, "--key", pair.key)
    process = spawn((sys.executable, "-m", "aks_flex_lab.mirror", *where, *what), log=server.log)
    try:
        until(lambda: MirrorClient(server.control).is_running() or not process.alive)
        yield server
    finally:
        process.stop()
    assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="session")
def pair(authority: CertificateAuthority) -> CertificatePair:
    """The certificate of servers on loopback."""
    return authority.issue("localhost", "localhost", names=("localhost",))


@pytest.fixture
def serve(pair: CertificatePair) -> Iterator[Callable[..., int]]:
    """Returns a function that starts a server with a behavior of `fake_providers`; it returns the port."""
    with ExitStack() as stack:
        yield lambda does, shows=pair: stack.enter_context(serving(does, shows))


@pytest.fixture
def publisher(
    publishing: Server, authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Publisher]:
    """Yields the publisher without faults before and after each test. The system trusts its CA."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    MirrorClient(publishing.control).reset()
    publishing.log.write_text("")
    found = Publisher(publishing.base, publishing.control, publishing.log, authority.certificate, tmp_path)
    yield found
    found.mirror.reset()  # ends responses that a fault rule delays
    for store in found.opened:
        store.close()
