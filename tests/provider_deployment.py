"""The provider in the lab's cluster, as packaging/kubernetes says, with PostgreSQL, and its clients."""

from __future__ import annotations

import asyncio
import base64
import secrets
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import yaml

from aks_flex_lab import dns, network
from aks_flex_lab.components.resource_provider import PROVIDER_AUDIENCE
from aks_flex_lab.entra.directory import TENANT_ID, EntraPrincipal, new_id
from aks_flex_lab.entra.tokens import SigningKey, TokenIssuer
from aks_flex_lab.images.builder import TaggedImage
from aks_flex_lab.processes import run
from aks_flex_rp.store.postgres import PostgresStore
from aks_flex_rp.store.postgres_address import parse_address
from bench.rp_load.connections import Server
from bench.rp_load.fleet import FACTS, fill, principal_of
from bench.rp_load.service_process import OPERATOR_LIMITS
from release.checkout import HOME
from tests.polling_fleet import FleetTask
from tests.service.rp.store.builders import KEY, record_authenticator
from tests.service.rp.store.servers import USER, PostgresServer, postgres_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.images.builder import OciImage
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

MANIFESTS = HOME / "packaging" / "kubernetes"
NAMESPACE = "aks-flex"
SELECTOR = "app.kubernetes.io/name=aks-flex-rp"
REPOSITORY = "flex/aks-flex-rp"
NAME = f"flex.{network.DOMAIN}"
DATABASE_NAME = f"postgres.{network.DOMAIN}"
DATABASE_ADDRESS = f"{network.CLOUD}.90"
HOLD_SECONDS = 20


@dataclass(frozen=True)
class Deployment:
    """The provider in the cluster. Nodes reach it at the address of its Service, by kube-proxy."""

    lab: Lab
    directory: Path
    database: PostgresServer

    def kubectl(self, *words: str, timeout: float = 120) -> str:
        return self.lab.cluster.run("-n", NAMESPACE, *words, timeout=timeout).out

    def pods(self) -> list[dict[str, Any]]:
        found = self.lab.cluster.get("pods", "-n", NAMESPACE, "-l", SELECTOR)
        return list(found["items"]) if found else []

    def node_names(self) -> set[str]:
        """Returns the nodes on which replicas run."""
        return {pod["spec"]["nodeName"] for pod in self.pods()}

    def database_sessions(self) -> list[str]:
        """Returns the version of TLS of each session that the replicas have at PostgreSQL."""
        sessions = "pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE client_addr IS NOT NULL"
        return self.database.query(f"SELECT coalesce(version, 'none') FROM {sessions}").split()  # noqa: S608

    def apply(self, image: OciImage, operator: EntraPrincipal) -> None:
        """Does what the documentation says: an overlay with image and configuration, the Secrets, and `apply -k`."""
        shutil.copytree(MANIFESTS, self.directory / "kubernetes")
        overlay = self.directory / "kubernetes" / "overlays" / "example"
        settings = yaml.safe_load((overlay / "config.yaml").read_text())
        tenant = {
            "tenantId": TENANT_ID,
            "audiences": [PROVIDER_AUDIENCE],
            "metadataUrl": f"{network.LOGIN_URL}/{TENANT_ID}/v2.0/.well-known/openid-configuration",
            "caFile": "/etc/aks-flex-rp/ca.crt",
        }
        settings["auth"]["tenants"] = [tenant]
        settings["auth"]["roles"][0]["principal"] = operator.object_id
        changed = {**settings, "publicUrl": f"https://{NAME}", "limits": OPERATOR_LIMITS}
        (overlay / "config.yaml").write_text(yaml.safe_dump(changed))
        shutil.copy(self.lab.authority.certificate, overlay / "ca.crt")
        customization = yaml.safe_load((overlay / "kustomization.yaml").read_text())
        customization["images"] = [
            {"name": "aks-flex-rp", "newName": f"mcr.microsoft.com/{REPOSITORY}", "digest": image.digest}
        ]
        customization["configMapGenerator"] = [
            {"name": "aks-flex-rp", "files": ["config.yaml", "ca.crt"]},
            {"name": "aks-flex-rp-database-ca", "files": ["ca.crt"]},
        ]
        (overlay / "kustomization.yaml").write_text(yaml.safe_dump(customization))
        self.lab.cluster.run("apply", "-f", str(MANIFESTS / "10-namespace.yaml"))
        self.lab.cluster.apply(*self._secrets(overlay))
        self.lab.cluster.run("apply", "--server-side", "--dry-run=server", "-k", str(overlay))
        self.lab.cluster.run("apply", "--server-side", "-k", str(overlay))

    def _secrets(self, overlay: Path) -> list[dict[str, Any]]:
        password = secrets.token_urlsafe(24)
        self.database.require_password(network.RANGE, password)
        trust = "sslmode=verify-full&sslrootcert=/etc/aks-flex-rp-database/ca.crt"
        serving = self.lab.authority.issue("flex-on-kubernetes", NAME, names=(NAME,))
        values = {
            "database": f"postgresql://{USER}:{password}@{DATABASE_NAME}:5432/store_1?{trust}",
            "keys": base64.urlsafe_b64encode(KEY).decode(),
            "token": secrets.token_urlsafe(32),
            "tls.crt": serving.certificate.read_text(),
            "tls.key": serving.key.read_text(),
        }
        found = list(yaml.safe_load_all((overlay / "secrets.example.yaml").read_text()))
        return [{**each, "stringData": {name: values[name] for name in each["stringData"]}} for each in found]

    def wait_available(self, seconds: float = 300) -> None:
        self.kubectl("rollout", "status", "deployment/aks-flex-rp", f"--timeout={seconds:.0f}s", timeout=seconds + 30)

    @property
    def service_address(self) -> str:
        found = self.lab.cluster.get("service", "aks-flex-rp", "-n", NAMESPACE)
        return str(found["spec"]["clusterIP"])

    @property
    def server(self) -> Server:
        return Server(self.service_address, 443, str(self.lab.authority.certificate), NAME)


@contextmanager
def lab_database(lab: Lab) -> Iterator[PostgresServer]:
    """Runs PostgreSQL in the lab's cloud, with a certificate of the lab's CA for its name."""
    cloud = lab.network.cloud
    cloud.ip(f"addr replace {DATABASE_ADDRESS}/24 dev eth0")
    dns.add_host(lab.layout, "postgres", "cloud", DATABASE_ADDRESS)
    try:
        with postgres_server((DATABASE_ADDRESS, 5432), cloud.command()) as server:
            server.offer_tls(lab.authority.issue("postgres", DATABASE_NAME, names=(DATABASE_NAME,)))
            yield server
    finally:
        dns.remove_host(lab.layout, "postgres")
        cloud.ip(f"addr del {DATABASE_ADDRESS}/24 dev eth0")


@contextmanager
def deployed_provider(
    lab: Lab, directory: Path, image: OciImage, nodes: int
) -> Iterator[tuple[Deployment, FleetTask]]:
    """Yields the running provider, with this many nodes in its database, and the task of their simulation."""
    operator = EntraPrincipal("servicePrincipal", "operator", new_id(), client_id=new_id())
    lab.services.push([TaggedImage(REPOSITORY, "test", image)])
    issuer = TokenIssuer(lab.azure.directory, SigningKey(lab.azure.state), network.LOGIN_URL)
    with lab_database(lab) as database:
        facts = replace(FACTS, tenant_id=TENANT_ID)
        asyncio.run(
            fill(
                PostgresStore(parse_address(database.new_database(), {}), record_authenticator()), range(nodes), facts
            )
        )
        deployment = Deployment(lab, directory, database)
        try:
            deployment.apply(image, operator)
            deployment.wait_available()
            operator_token = issuer.access_token(operator, PROVIDER_AUDIENCE)
            yield deployment, FleetTask(deployment.server, node_tokens(issuer, nodes), operator_token, HOLD_SECONDS)
        finally:
            lab.cluster.run("delete", "namespace", NAMESPACE, "--ignore-not-found", check=False, timeout=180)


def node_tokens(issuer: TokenIssuer, nodes: int) -> list[str]:
    principals = [
        EntraPrincipal("managedIdentity", f"n{number}", principal_of(number), client_id=principal_of(number))
        for number in range(nodes)
    ]
    return [issuer.access_token(principal, PROVIDER_AUDIENCE) for principal in principals]


@dataclass(frozen=True)
class NodeNetwork:
    """The network of a node, where kube-proxy forwards connections to the address of a Service."""

    machine: EdgeMachine

    def command(self, *argv: str) -> tuple[str, ...]:
        return ("nsenter", f"--net=/proc/{self.machine.main_pid()}/ns/net", "--", *argv)

    def connections(self, address: str) -> int:
        """Returns the number of open connections to an address."""
        return len(run(*self.command("ss", "-Htn", "state", "established", "dst", address)).out.splitlines())
