"""Checks that contact other hosts: DNS, the API server and its CA, the clock difference, the bootstrap token."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aks_flex_node.agent.aks_pool.pool_ids import new_token_hint
from aks_flex_node.agent.cluster.diagnosis import NEW_TOKEN_HINT
from aks_flex_node.agent.components.artifact_urls import minor_version
from aks_flex_node.agent.config import resolved
from aks_flex_node.agent.http.download_options import parse_ip_address
from aks_flex_node.agent.machine import is_loopback, name_servers
from aks_flex_node.agent.preflight import artifact_checks
from aks_flex_node.agent.preflight.check import CheckFinding, PreflightContext, error, ok, warning
from aks_flex_node.agent.preflight.interfaces import (
    CallTimeout,
    ProbeFailed,
    ProbeFailure,
    ProbeRequest,
    ProbeResponse,
    run_concurrently,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.settings.models import NodeConfig
    from aks_flex_node.settings.secret import Secret

VPN_UNIT = "aks-flex-node-vpn.service"
DNS_SECONDS = 8.0
NOT_BEFORE = 1_735_689_600.0  # 2025: any correct clock is later
GOOD_SKEW, MOST_SKEW = 30.0, 300.0
MAX_VERSION_SKEW = 3  # minor versions that a kubelet may be older than its API server
ACCESS_REVIEW_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
# Checks whether the token allows the first request of a kubelet. The cluster stores nothing.
ACCESS_REVIEW = {
    "apiVersion": "authorization.k8s.io/v1",
    "kind": "SelfSubjectAccessReview",
    "spec": {
        "resourceAttributes": {
            "group": "certificates.k8s.io",
            "resource": "certificatesigningrequests",
            "verb": "create",
        }
    },
}
API_SERVER_HINT = "See the result of the check api-server."


def check_dns(context: PreflightContext) -> Iterator[CheckFinding]:
    # A proxy resolves the names behind it.
    options = artifact_checks.context_options(context)
    server = None if _awaits_vpn(context) else context.config.node.kubelet.server_url
    urls = [*([server] if server else []), *artifact_checks.request_urls(context)]
    hosts = [urlsplit(options.proxy_for(url) or url).hostname or "" for url in urls]
    names = [name for name in dict.fromkeys(hosts) if name and not parse_ip_address(name)]
    end = time.monotonic() + DNS_SECONDS
    found = []
    for name, call in run_concurrently(context.network.resolve, names):
        try:
            call.wait(end)
            found.append(name)
        except ProbeFailed as failure:
            yield _unknown(name, failure.reason)
        except CallTimeout:
            yield _unknown(name, f"the DNS name {name} cannot be resolved: no DNS server responded in time")
    # A DNS server that only the machine itself reaches, such as dnsmasq.
    path = context.machine.resolv_conf
    servers = name_servers(context.text(path))
    if servers and all(map(is_loopback, servers)):
        yield warning(
            f"{path} names only DNS servers that pods cannot reach: {', '.join(servers)}. DNS would fail in the pods "
            "of cluster DNS, and in those with dnsPolicy Default.",
            f"Write the servers to which they forward into {path}, or use systemd-resolved.",
        )
    if len(found) == len(names):
        yield ok(", ".join(found) or "no names to resolve")


def _unknown(name: str, reason: str) -> CheckFinding:
    return error(
        f"{reason[0].upper()}{reason[1:]}.",
        f"Run `getent ahosts {name}`. Check the name in the configuration, and the DNS servers in /etc/resolv.conf.",
    )


def _request(context: PreflightContext, path: str, token: Secret | None = None) -> ProbeResponse:
    """Sends a request to the API server. Trusts only the CA of the cluster."""
    server = (context.config.node.kubelet.server_url or "").rstrip("/")
    authority = resolved.ca_certificate(context.config)
    request = ProbeRequest(f"{server}{path}", authority, token, ACCESS_REVIEW if token else None)
    return context.network.ask_with_retry(request)


def _awaits_vpn(context: PreflightContext) -> bool:
    """Returns whether the API server is reached through a VPN that is not connected yet."""
    return context.config.azure.vpn.enabled and context.host.unit(VPN_UNIT).active != "active"


def _can_request(context: PreflightContext) -> bool:
    config = context.config
    known = config.node.kubelet.server_url and resolved.ca_certificate(config)
    return bool(known) and not _awaits_vpn(context)


def check_api_server(context: PreflightContext) -> Iterator[CheckFinding]:
    server = context.config.node.kubelet.server_url
    if _awaits_vpn(context):
        yield ok(f"{server or 'the API server'} is checked after the VPN is connected")
        return
    if not _can_request(context):
        yield warning(
            "The configuration does not set the API server and its CA, so they were not checked.",
            "Set `node.kubelet.serverURL` and `node.kubelet.caCertData`, unless the agent reads them from Azure.",
        )
        return
    try:
        response = _request(context, "/version")
    except ProbeFailed as failure:
        yield _unreachable(server or "", failure)
        return
    if response.status >= 500:
        yield error(
            f"{server} responds with status {response.status}.", "Check the cluster, then run the same command again."
        )
    elif response.status == 404 or (response.status == 200 and "gitVersion" not in response.document):
        yield error(f"{server} responds, but is not a Kubernetes API server.", "Check `node.kubelet.serverURL`.")
    else:
        version = str(response.document.get("gitVersion", ""))
        yield ok(
            f"{server} responds{f', {version}' if version else ''}; its certificate is signed by the CA of the "
            "cluster"
        )
        yield from _skew(context.config.kubernetes.version or "", version)


def _unreachable(server: str, failure: ProbeFailed) -> CheckFinding:
    name = urlsplit(server).hostname
    if failure.cause is ProbeFailure.UNTRUSTED:
        return _untrusted(name or server, failure.reason)
    if failure.cause is ProbeFailure.NAME:
        return error(f"The API server cannot be reached: {failure.reason}.", "See the result of the check dns.")
    return error(
        f"The API server cannot be reached: {failure.reason}.",
        f"Run `curl -kv {server}/version`. Check `node.kubelet.serverURL`, routes, firewalls and the proxy.",
    )


def _untrusted(name: str, reason: str) -> CheckFinding:
    if "mismatch" in reason:
        return error(
            f"The certificate of {name} is for another name ({reason}).",
            "Compare `node.kubelet.serverURL` with the server in a working kubeconfig.",
        )
    if "expired" in reason or "not yet valid" in reason:
        return error(
            f"The certificate of {name} is not valid now ({reason}).",
            "Check the clock with `date`. If it is correct, renew the certificates of the cluster.",
        )
    return error(
        f"The certificate of {name} is not signed by the CA of the cluster ({reason}).",
        "Compare `node.kubelet.caCertData` with the certificate-authority-data in a working kubeconfig, and "
        "`node.kubelet.serverURL` with its server. A proxy that intercepts TLS must exclude this name.",
    )


def _skew(ours: str, theirs: str) -> Iterator[CheckFinding]:
    mine, server = minor_version(ours), minor_version(theirs)
    if mine is None or server is None:
        return
    if mine > server:
        yield error(
            f"The kubelet ({ours}) would be newer than the API server ({theirs}), which Kubernetes does not support.",
            f"Set `kubernetes.version` to a 1.{server[1]} version.",
        )
    elif server[1] - mine[1] > MAX_VERSION_SKEW:
        yield warning(
            f"The kubelet ({ours}) is more than {MAX_VERSION_SKEW} minor versions older than the API server "
            f"({theirs}).",
            f"Set `kubernetes.version` to a 1.{server[1]} version.",
        )


def check_clock(context: PreflightContext) -> Iterator[CheckFinding]:
    now = context.now()
    remedy = "Set the clock with `sudo timedatectl set-ntp true`, or with `sudo date -s '2026-01-31 12:00:00'`."
    if now < NOT_BEFORE:
        yield error(f"The clock shows {_date(now)}, which is in the past: certificates are not valid yet.", remedy)
        return
    theirs = _server_time(context)
    if theirs is None:
        yield ok(f"{_date(now)}; not compared with the API server")
        return
    skew = now - theirs
    message = f"The clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the API server's"
    if abs(skew) > MOST_SKEW:
        yield error(f"{message}, so certificates and tokens will be rejected.", remedy)
    elif abs(skew) > GOOD_SKEW:
        yield warning(f"{message}.", remedy)
    else:
        yield ok(f"{_date(now)}, same as the API server")


def _server_time(context: PreflightContext) -> float | None:
    if not _can_request(context):
        return None
    try:
        return _request(context, "/healthz").date
    except ProbeFailed:
        return None


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def check_token(context: PreflightContext) -> Iterator[CheckFinding]:
    secret = resolved.join_token(context.config)
    if context.has_credential:
        yield ok("not needed: the node has a client certificate")
    elif resolved.kubelet_auth(context.config) != "bootstrapToken":
        yield ok("not needed: the node uses its Azure identity")
    elif secret is None:
        yield error(_no_token(context.config), _new_token_hint(context.config))
    elif _awaits_vpn(context):
        yield ok("checked after the VPN is connected")
    elif _can_request(context):
        yield _check_with_server(context, secret)
    else:
        yield warning("The bootstrap token was not checked: the API server is not known.", API_SERVER_HINT)


def _new_token_hint(config: NodeConfig) -> str:
    return new_token_hint(config) or NEW_TOKEN_HINT


def _no_token(config: NodeConfig) -> str:
    path = config.azure.bootstrap_token.token_file if config.azure.bootstrap_token else None
    if path:
        return f"azure.bootstrapToken.tokenFile is {path}, which does not exist."
    return "The configuration has neither a bootstrap token nor another credential for the join."


def _check_with_server(context: PreflightContext, secret: Secret) -> CheckFinding:
    try:
        response = _request(context, ACCESS_REVIEW_PATH, secret)
    except ProbeFailed:
        return warning(
            "The bootstrap token was not checked: the API server could not be reached.",
            API_SERVER_HINT,
        )
    if response.status == 401:
        return error(
            "The API server rejects the bootstrap token: it expired, or belongs to another cluster.",
            _new_token_hint(context.config),
        )
    status = response.document.get("status")
    if isinstance(status, dict) and not status.get("allowed", False):
        return error(
            "The API server accepts the bootstrap token, but it cannot request a node certificate.",
            "Bind its group to the role system:node-bootstrapper: `kubectl create clusterrolebinding flex-nodes "
            "--clusterrole=system:node-bootstrapper --group=system:bootstrappers`.",
        )
    if response.status >= 400:
        return warning(
            f"The API server responded with status {response.status} to the check of the bootstrap token.",
            API_SERVER_HINT,
        )
    return ok("the API server accepts it, and it can request a node certificate")
