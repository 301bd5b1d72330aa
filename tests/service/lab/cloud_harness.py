"""The lab's Azure as a process on loopback, with a provider that echoes requests."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_lab.arm.managed_clusters import SUBSCRIPTION_ID, ManagedCluster, ManagedClusters
from aks_flex_lab.arm.role_assignments import RoleAssignments
from aks_flex_lab.entra.directory import TENANT_ID, EntraDirectory, MachineIdentities
from aks_flex_lab.entra.tokens import SigningKey
from aks_flex_lab.processes import spawn
from tests.service.http_servers import Handler, listening
from tests.service.ports import accepts, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.pki import CertificateAuthority, CertificatePair
    from aks_flex_lab.processes import ProcessHandle

CLUSTER = (
    f"/subscriptions/{SUBSCRIPTION_ID}/resourceGroups/edge/providers/Microsoft.ContainerService/managedClusters/plant"
)
OWNER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635"
READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"


@dataclass(frozen=True)
class Cloud:
    url: str  # of Entra ID and of ARM: one process with one host name
    ca: str
    state: Path
    process: ProcessHandle
    argv: tuple[str | Path, ...]
    log: Path

    @property
    def metadata(self) -> str:
        return f"{self.url}/{TENANT_ID}/v2.0/.well-known/openid-configuration"

    @property
    def directory(self) -> EntraDirectory:
        return EntraDirectory(self.state)

    @property
    def keys(self) -> SigningKey:
        return SigningKey(self.state)

    @property
    def assignments(self) -> RoleAssignments:
        return RoleAssignments(self.state, self.directory)


@contextmanager
def running_cloud(
    authority: CertificateAuthority, room: Path, provider: str, provider_ca: Path | None = None
) -> Iterator[Cloud]:
    """Runs the lab's Azure. `provider_ca` is the provider's CA if it is another one; the file may
    be created later.
    """
    pair = authority.issue("localhost", "localhost", names=("localhost",))
    port, state, log = free_port(), room / "state", room / "log"
    url = f"https://localhost:{port}"
    argv: tuple[str | Path, ...] = (
        *(sys.executable, "-m", "aks_flex_lab.arm", "--listen", f"127.0.0.1:{port}"),
        *("--cert", pair.certificate, "--key", pair.key, "--state", state),
        *(
            "--provider",
            provider,
            "--provider-ca",
            provider_ca or authority.certificate,
            "--login",
            url,
            "--management",
            url,
        ),
    )
    kubeconfig = room / "admin.kubeconfig"
    kubeconfig.write_text("kind: Config\n")
    ManagedClusters(state).register(
        ManagedCluster(
            CLUSTER,
            "westeurope",
            "1.34.4",
            "api.flex.internal",
            str(kubeconfig),
            "198.19.128.0/20",
            "198.19.128.10",
            "198.19.0.0/17",
        )
    )
    process = spawn(argv, log=log)
    try:
        wait_until(lambda: accepts(port), process, log)
        yield Cloud(url, str(authority.certificate), state, process, argv, log)
    finally:
        process.stop()
    assert "Traceback" not in log.read_text()


@contextmanager
def running_metadata(cloud: Cloud, room: Path, *identities: EntraPrincipal) -> Iterator[str]:
    """Runs the metadata service of a machine with these identities; clients find it by an environment variable."""
    port, log = free_port(), room / "metadata.log"
    where = ("--listen", f"127.0.0.1:{port}", "--state", cloud.state, "--login", cloud.url)
    MachineIdentities(cloud.state).set("127.0.0.1", [each.object_id for each in identities])
    process = spawn((sys.executable, "-m", "aks_flex_lab.entra", *where), log=log)
    try:
        wait_until(lambda: accepts(port), process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stop()
    assert "Traceback" not in log.read_text()


class Repeats(Handler):
    """A provider that echoes requests, and fails on request."""

    protocol_version = "HTTP/1.1"

    def _repeat(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        heard = {
            "method": self.command,
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": self.rfile.read(length).decode(),
        }
        status = int(self.headers.get("x-answer", "200"))
        body = b"" if status in {204, 304} else json.dumps(heard).encode()
        self.send_response(status)
        self.send_header("ETag", '"17"')
        self.send_header("x-ms-request-id", "of-the-provider")
        self.send_header("Retry-After", "3")
        if body:
            self.send_header("Content-Type", "application/json")
        if status not in {204, 304}:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = _repeat  # noqa: N815 - http.server's names


@contextmanager
def running_provider(pair: CertificatePair) -> Iterator[str]:
    with listening(Repeats, pair) as url:
        yield url
