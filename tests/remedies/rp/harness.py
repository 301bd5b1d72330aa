"""What tests of the remedies of `aks-flex-rp` share: failed commands, shell commands, and an API server."""

from __future__ import annotations

import base64
import json
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx2

from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_node import error_catalog
from tests.remedies.catalogue import PACKAGES, command
from tests.service.http_servers import Handler, listening
from tests.service.rp.api.fake_clusters import PLANT
from tests.unit.rp.clusters.fakes import FakeApi

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority, CertificatePair
    from tests.service.lab.cloud_harness import Cloud
    from tests.service.rp.cli.cli_harness import Outcome, Person

TOKEN = "of-the-administrator"
VERSION = "v1.34.4"


def fails(
    person: Person, name: str, *words: str, stdin: str | None = None, env: Mapping[str, str] | None = None
) -> Outcome:
    """Runs a command that must fail with exactly this error."""
    done = person.types(*words, stdin=stdin, env=env)
    entry = error_catalog.load_catalog(*PACKAGES).get(name)
    more = f": run `aks-flex-rp explain {name}` for causes and remedies" if entry else ""
    assert f"\n  {name}{more}\n" in done.err, done.err or done.out
    assert done.code in entry.exit if entry else done.code, done.code
    return done


def our_command(name: str, start: str, **values: str) -> tuple[str, ...]:
    """Returns the arguments of the command `aks-flex-rp` that a remedy names."""
    program, *words = command(name, f"aks-flex-rp {start}", **values)
    assert program == "aks-flex-rp"
    return tuple(words)


def shell(name: str, start: str, **values: str) -> str:
    """Runs a shell command of a remedy and returns its output."""
    text = " ".join(command(name, start, **values))
    return subprocess.run(["bash", "-c", text], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def private(file: Path, text: str) -> Path:
    """Writes a file with mode 0600."""
    file.touch(0o600)
    file.chmod(0o600)
    file.write_text(text)
    return file


@dataclass
class ApiServer:
    """A small API server on loopback: objects in memory over TLS."""

    url: str
    ca: Path
    folder: Path
    api: FakeApi = field(default_factory=FakeApi)
    names: int = 0

    def add(self, cluster: str = str(PLANT), *words: str) -> tuple[str, ...]:
        """Returns the command that adds a cluster with this API server."""
        return ("cluster", "add", cluster, "--kubeconfig", str(self.kubeconfig()), *words)

    def kubeconfig(self, **changes: Any) -> Path:
        """Writes a complete kubeconfig; `changes` replace settings of its cluster or its user."""
        cluster = {"server": self.url, "certificate-authority-data": _encoded(self.ca)}
        user = {"token": TOKEN}
        for name, value in changes.items():
            key = name.replace("_", "-")
            (user if key in {"token", "exec", "client-certificate-data", "client-key-data"} else cluster)[key] = value
        document = {
            "current-context": "x",
            "clusters": [{"name": "x", "cluster": cluster}],
            "users": [{"name": "x", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        }
        self.names += 1
        return private(self.folder / f"kubeconfig-{self.names}", json.dumps(document))


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def _answer(document: dict[str, Any], _: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, json=document)


def kubernetes_api() -> FakeApi:
    """Returns an API server in memory with what `cluster add` and `cluster check` read."""
    api = FakeApi()
    api.put("/api/v1/namespaces/default/services/kubernetes", {"spec": {"clusterIP": "10.96.0.1"}})
    known: dict[str, dict[str, Any]] = {
        "GET /version": {"gitVersion": VERSION},
        "GET /apis/admissionregistration.k8s.io/v1": {"resources": []},
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews": {"status": {"allowed": True}},
    }
    for call, document in known.items():
        api.answers[call] = partial(_answer, document)
    return api


@contextmanager
def api_server(
    authority: CertificateAuthority, folder: Path, port: int = 0, pair: CertificatePair | None = None
) -> Iterator[ApiServer]:
    """Runs an API server. `pair` is a certificate of another authority."""
    api = kubernetes_api()

    class Api(Handler):
        protocol_version = "HTTP/1.1"

        def _respond(self) -> None:
            data = self.rfile.read(int(self.headers.get("content-length") or 0))
            url = f"https://localhost{self.path}"
            answer = api.handle(httpx2.Request(self.command, url, headers=dict(self.headers), content=data))
            self.respond(answer.status_code, answer.content, {"Content-Type": "application/json"})

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _respond  # noqa: N815 - http.server's names

    own = pair or authority.issue("kubernetes", "kubernetes", names=("localhost",))
    with listening(Api, own, port) as url:
        yield ApiServer(url, authority.certificate, folder, api)


@dataclass
class AzureStub:
    """An Azure Resource Manager with one cluster, which has local accounts if it has a kubeconfig."""

    url: str = ""
    config: Path | None = None  # of a service with an identity in this Azure
    kubeconfig: bytes = b""

    def answer(self, path: str) -> dict[str, Any]:
        if not path.endswith("/listClusterAdminCredential"):
            return {"location": "westeurope", "properties": {"networkProfile": {"dnsServiceIP": "10.0.0.10"}}}
        value = base64.b64encode(self.kubeconfig).decode()
        return {"kubeconfigs": [{"name": "clusterAdmin", "value": value}] if self.kubeconfig else []}


@contextmanager
def azure_stub(authority: CertificateAuthority, cloud: Cloud, folder: Path) -> Iterator[AzureStub]:
    """Runs an Azure whose identities are those of the lab's Entra ID."""
    stub = AzureStub()

    class Arm(Handler):
        def _respond(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            text = json.dumps(stub.answer(self.path.partition("?")[0])).encode()
            self.respond(200, text, {"Content-Type": "application/json"})

        do_GET = do_POST = _respond  # noqa: N815 - http.server's names

    principal = cloud.directory.service_principal("provider", "of-the-provider")
    with listening(Arm, authority.issue("localhost", "localhost", names=("localhost",))) as url:
        secret = private(folder / "azure-secret", "of-the-provider")
        identity = {"tenantId": TENANT_ID, "clientId": principal.client_id, "clientSecretFile": str(secret)}
        azure = {"resourceManager": url, "authority": cloud.url, "caFile": str(authority.certificate), **identity}
        stub.url, stub.config = url, private(folder / "azure.yaml", json.dumps({"azure": azure}))
        yield stub
