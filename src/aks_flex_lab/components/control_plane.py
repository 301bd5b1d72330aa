"""The cluster's control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_lab import network
from aks_flex_lab.architecture import Architecture
from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_lab.errors import ComponentError
from aks_flex_lab.files import write_atomically
from aks_flex_lab.pki import CertificateAuthority, CertificatePair, kubeconfig_text
from aks_flex_lab.supervisor import LabComponent, NamespaceConnection, client_tls_context, https_probe, tcp_probe
from aks_flex_node.agent.identity.cloud_endpoints import AKS_SERVER_APP_ID

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.kernel.namespaces import NetworkNamespace
    from aks_flex_lab.layout import LabLayout
    from aks_flex_lab.tools import Toolbox

ETCD_URL = "http://127.0.0.1:2379"
CLOUD_API_URL = f"https://{network.API}:443"  # URL of the API server for the other programs of the control plane
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "nonResourceURLs": ["/livez*", "/readyz*", "/healthz*", "/version"]},
        {"level": "None", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
        {"level": "Metadata"},
    ],
}
# Users and groups of the lab's Entra ID are identified by their object IDs, as in AKS.
ENTRA_ISSUER: dict[str, dict[str, Any]] = {
    "issuer": {
        "url": f"https://sts.windows.net/{TENANT_ID}/",
        "discoveryURL": f"{network.LOGIN_URL}/{TENANT_ID}/.well-known/openid-configuration",
        "audiences": [AKS_SERVER_APP_ID],
    },
    "claimMappings": {"username": {"claim": "oid", "prefix": ""}, "groups": {"claim": "groups", "prefix": ""}},
}
AGGREGATOR_CLIENT = "front-proxy-client"  # the API server, to other API servers of the cluster
API_NAMES = (
    network.API_NAME,
    network.API,
    network.API_SERVICE,
    network.PRIVATE_API_NAME,
    network.PRIVATE_API,
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
    "127.0.0.1",
)


@dataclass(frozen=True)
class ControlPlane:
    layout: LabLayout
    toolbox: Toolbox
    cloud: NetworkNamespace
    etcd_version: str | None = None  # by default Debian's

    @property
    def authority(self) -> CertificateAuthority:
        return CertificateAuthority(self.layout.pki)

    def admin(self) -> CertificatePair:
        return self.authority.issue("admin", "lab-admin", "system:masters")

    def audit_log(self) -> Path:
        return self.layout.components / "kube-apiserver" / "audit.log"

    def etcd(self) -> LabComponent:
        data = self.layout.components / "etcd" / "data"
        argv = (
            self.toolbox.path("etcd", "etcd", self.etcd_version),
            "--name=lab",
            f"--data-dir={data}",
            f"--listen-client-urls={ETCD_URL}",
            f"--advertise-client-urls={ETCD_URL}",
            "--listen-peer-urls=http://127.0.0.1:2380",
        )
        # Debian's etcd requires this on architectures that its authors do not test. It has no effect on others.
        env = {"ETCD_UNSUPPORTED_ARCH": "arm64"} if Architecture.of_host() is Architecture.ARM64 else {}
        return LabComponent("etcd", argv, ETCD_URL, tcp_probe(self.cloud, "127.0.0.1", 2379), self.cloud, env=env)

    def api_server(self, resolver: Path) -> LabComponent:
        authority = self.authority
        serving = authority.issue("kube-apiserver", "kube-apiserver", names=API_NAMES)
        kubelet_client = authority.issue("kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
        accounts = authority.service_account_key()
        aggregator = authority.issue(AGGREGATOR_CLIENT, AGGREGATOR_CLIENT)
        policy = self.layout.components / "kube-apiserver" / "audit-policy.json"
        sign_in = self.layout.components / "kube-apiserver" / "authentication.json"
        argv = (
            self._kubernetes("kube-apiserver"),
            f"--etcd-servers={ETCD_URL}",
            f"--bind-address={network.API}",
            "--secure-port=443",
            f"--advertise-address={network.API}",
            f"--service-cluster-ip-range={network.SERVICES}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={authority.certificate}",
            f"--kubelet-client-certificate={kubelet_client.certificate}",
            f"--kubelet-client-key={kubelet_client.key}",
            "--kubelet-preferred-address-types=InternalIP,Hostname",
            "--authorization-mode=Node,RBAC",
            "--enable-bootstrap-token-auth",
            f"--authentication-config={sign_in}",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={accounts}",
            f"--service-account-signing-key-file={accounts}",
            f"--requestheader-client-ca-file={authority.certificate}",
            f"--requestheader-allowed-names={AGGREGATOR_CLIENT}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={aggregator.certificate}",
            f"--proxy-client-key-file={aggregator.key}",
            "--enable-aggregator-routing",  # to the addresses of pods: no kube-proxy runs beside the API server
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log()}",
            "--audit-log-maxsize=50",
            "--audit-log-maxbackup=2",
        )
        ready = https_probe(self.cloud, network.API, 443, "/readyz", authority.certificate)
        files = {policy: json.dumps(AUDIT_POLICY), sign_in: json.dumps(authentication_config(authority.certificate))}
        return LabComponent(
            "kube-apiserver", argv, network.API_URL, ready, self.cloud, files=files, resolver=resolver
        )

    def controller_manager(self) -> LabComponent:
        authority = self.authority
        argv: tuple[str | Path, ...] = (
            self._kubernetes("kube-controller-manager"),
            "--controllers=*,bootstrap-signer-controller,token-cleaner-controller",
            *self._as("system:kube-controller-manager"),
            "--use-service-account-credentials",
            f"--root-ca-file={authority.certificate}",
            f"--service-account-private-key-file={authority.service_account_key()}",
            f"--cluster-signing-cert-file={authority.certificate}",
            f"--cluster-signing-key-file={authority.key}",
            "--allocate-node-cidrs",
            f"--cluster-cidr={network.PODS}",
            "--node-cidr-mask-size=24",
            f"--service-cluster-ip-range={network.SERVICES}",
        )
        ready = https_probe(self.cloud, "127.0.0.1", 10257, "/healthz", None)
        return LabComponent("kube-controller-manager", argv, "https://127.0.0.1:10257", ready, self.cloud)

    def scheduler(self) -> LabComponent:
        argv: tuple[str | Path, ...] = (self._kubernetes("kube-scheduler"), *self._as("system:kube-scheduler"))
        ready = https_probe(self.cloud, "127.0.0.1", 10259, "/healthz", None)
        return LabComponent("kube-scheduler", argv, "https://127.0.0.1:10259", ready, self.cloud)

    def _as(self, user: str) -> tuple[str, ...]:
        """Returns the flags that run a control plane program as this user, without leader election."""
        file = user.removeprefix("system:")
        client = self.authority.issue(file, user)
        config = self.layout.pki / f"{file}.kubeconfig"
        if not config.exists():
            write_atomically(config, kubeconfig_text(CLOUD_API_URL, self.authority, client), 0o600)
        authn = (f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}")
        return (f"--kubeconfig={config}", *authn, "--bind-address=127.0.0.1", "--leader-elect=false")

    def _kubernetes(self, command: str) -> Path:
        return self.toolbox.path("kubernetes", command)


def authentication_config(authority: Path) -> dict[str, Any]:
    """Returns the API server's configuration for tokens of the lab's Entra ID."""
    entra = {**ENTRA_ISSUER, "issuer": {**ENTRA_ISSUER["issuer"], "certificateAuthority": authority.read_text()}}
    return {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": [entra]}


def watch_api(layout: LabLayout, path: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Yields the events of a watch on the cluster's API until the watch ends.

    The watch starts from the API server's cache (resource version 0). Debian's etcd does not report its progress, so
    a watch from "now" waits for the next write to the same kind of object, and then fails.
    """
    authority = CertificateAuthority(layout.pki)
    admin = authority.issue("admin", "lab-admin", "system:masters")
    trust = client_tls_context(authority.certificate)
    trust.load_cert_chain(admin.certificate, admin.key)
    cloud = network.LabNetwork(layout).cloud
    with closing(NamespaceConnection(cloud, network.API, 443, network.API_NAME, trust, seconds + 10)) as connection:
        connection.request("GET", f"{path}&resourceVersion=0&timeoutSeconds={int(seconds)}")
        for line in connection.getresponse():
            event = json.loads(line)
            if event.get("type") not in {"ADDED", "MODIFIED", "DELETED"}:
                raise ComponentError(
                    "watch-failed",
                    f"The API server ended a watch: {event.get('object', event)}.",
                    "Retry. If the error persists, run `aks-flex-lab logs kube-apiserver`.",
                )
            yield event
