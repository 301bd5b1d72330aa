"""Checks that ask other machines: DNS, the API server and its CA, the clock difference, the bootstrap token."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aks_flex_node.agent.config import resolved
from aks_flex_node.agent.http.download_options import parse_ip_address
from aks_flex_node.agent.preflight import artifact_checks
from aks_flex_node.agent.preflight.check import CheckFinding, error, ok, warning
from aks_flex_node.agent.preflight.interfaces import (
    CallTimeout,
    ProbeFailed,
    ProbeFailure,
    ProbeRequest,
    ProbeResponse,
    ask_with_retry,
    run_concurrently,
)
from aks_flex_node.api.kubernetes_rules import bootstrap_token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.config.secret import Secret
    from aks_flex_node.agent.preflight.check import PreflightContext

TUNNEL_UNIT = "aks-flex-node-vpn.service"
DNS_SECONDS = 8.0
NOT_BEFORE = 1_735_689_600.0  # 2025: no clock that is right says less
GOOD_SKEW, MOST_SKEW = 30.0, 300.0
MAX_VERSION_SKEW = 3  # so many minor versions may a kubelet be older than its API server
ACCESS_REVIEW_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
# Asks whether the token may do what a kubelet does first. The answer is kept nowhere.
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
NEW_TOKEN_HINT = (
    "Get a new one: run here the line that `aks-flex-rp node join-command` prints, "  # noqa: S105
    "or put what `kubeadm token create` prints into the configuration."
)
API_SERVER_HINT = "See what the check api-server says."


def check_dns(context: PreflightContext) -> Iterator[CheckFinding]:
    names = _names(context)
    end = time.monotonic() + DNS_SECONDS
    found = []
    for name, call in run_concurrently(context.network.resolve, names):
        try:
            call.wait(end)
            found.append(name)
        except ProbeFailed as silence:
            yield _unknown(name, silence.reason)
        except CallTimeout:
            yield _unknown(name, f"the name {name} cannot be looked up: no name server answered in time")
    if len(found) == len(names):
        yield ok(", ".join(found) or "no names to look up")


def _unknown(name: str, reason: str) -> CheckFinding:
    return error(
        f"{reason[0].upper()}{reason[1:]}.",
        f"Try `getent ahosts {name}`. Check the name in the configuration, and the name servers in /etc/resolv.conf.",
    )


def _names(context: PreflightContext) -> list[str]:
    """Every name that this machine itself has to look up; a proxy looks up what is behind it."""
    options = artifact_checks.context_options(context)
    server = None if _awaits_tunnel(context) else context.config.node.kubelet.server_url
    urls = [*([server] if server else []), *artifact_checks.request_urls(context)]
    hosts = [urlsplit(options.proxy_for(url) or url).hostname or "" for url in urls]
    return [name for name in dict.fromkeys(hosts) if name and not parse_ip_address(name)]


def _ask(context: PreflightContext, path: str, token: Secret | None = None) -> ProbeResponse:
    """Ask the API server, and believe nobody whom the cluster's CA does not vouch for."""
    server = (context.config.node.kubelet.server_url or "").rstrip("/")
    authority = resolved.ca_certificate(context.config)
    request = ProbeRequest(f"{server}{path}", authority, token, ACCESS_REVIEW if token else None)
    return ask_with_retry(context.network, request)


def _awaits_tunnel(context: PreflightContext) -> bool:
    """Whether the API server is reached by a tunnel that is not there yet."""
    return context.config.azure.vpn.enabled and context.host.unit(TUNNEL_UNIT).active != "active"


def _can_ask(context: PreflightContext) -> bool:
    config = context.config
    known = config.node.kubelet.server_url and resolved.ca_certificate(config)
    return bool(known) and not _awaits_tunnel(context)


def check_api_server(context: PreflightContext) -> Iterator[CheckFinding]:
    server = context.config.node.kubelet.server_url
    if _awaits_tunnel(context):
        yield ok(f"{server or 'it'} is asked when there is a tunnel to it")
        return
    if not _can_ask(context):
        yield warning(
            "The configuration does not name the API server and its CA, so it was not asked.",
            "Set node.kubelet.serverURL and node.kubelet.caCertData, unless the agent is to get them from Azure.",
        )
        return
    try:
        heard = _ask(context, "/version")
    except ProbeFailed as silence:
        yield _unheard(server or "", silence)
        return
    if heard.status >= 500:
        yield error(f"{server} answers with status {heard.status}.", "Look at the cluster; then try again.")
    elif heard.status == 404 or (heard.status == 200 and "gitVersion" not in heard.document):
        yield error(f"{server} answers, but is not a Kubernetes API server.", "Check node.kubelet.serverURL.")
    else:
        version = str(heard.document.get("gitVersion", ""))
        yield ok(f"{server} answers{f', {version}' if version else ''}; the cluster's CA has signed its certificate")
        yield from _skew(context.config.kubernetes.version or "", version)


def _unheard(server: str, silence: ProbeFailed) -> CheckFinding:
    name = urlsplit(server).hostname
    if silence.cause is ProbeFailure.UNTRUSTED:
        return _untrusted(name or server, silence.reason)
    if silence.cause is ProbeFailure.NAME:
        return error(f"The API server cannot be asked: {silence.reason}.", "See what the check dns says.")
    return error(
        f"The API server cannot be reached: {silence.reason}.",
        f"Try `curl -kv {server}/version`. Check node.kubelet.serverURL, routes, firewalls and the proxy on the way.",
    )


def _untrusted(name: str, reason: str) -> CheckFinding:
    if "mismatch" in reason:
        return error(
            f"The certificate that {name} shows is for another name ({reason}).",
            "Compare node.kubelet.serverURL with the server of a kubeconfig that works.",
        )
    if "expired" in reason or "not yet valid" in reason:
        return error(
            f"The certificate that {name} shows is not valid now ({reason}).",
            "Look at the clock with `date`. If it is right, the cluster's certificates have to be renewed.",
        )
    return error(
        f"The certificate that {name} shows was not signed by the cluster's CA ({reason}).",
        "Compare node.kubelet.caCertData with the certificate-authority-data of a kubeconfig that works, and"
        " node.kubelet.serverURL with its server. A proxy that opens TLS has to leave this name alone.",
    )


def _skew(ours: str, theirs: str) -> Iterator[CheckFinding]:
    mine, server = minor(ours), minor(theirs)
    if mine is None or server is None:
        return
    if mine > server:
        yield error(
            f"The kubelet ({ours}) would be newer than the API server ({theirs}), which Kubernetes does not support.",
            f"Set kubernetes.version to a release of 1.{server[1]}.",
        )
    elif server[1] - mine[1] > MAX_VERSION_SKEW:
        yield warning(
            f"The kubelet ({ours}) is more than {MAX_VERSION_SKEW} releases older than the API server ({theirs}).",
            f"Set kubernetes.version to a release of 1.{server[1]}.",
        )


def minor(version: str) -> tuple[int, int] | None:
    parts = version.removeprefix("v").split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1])


def check_clock(context: PreflightContext) -> Iterator[CheckFinding]:
    now = context.now()
    right = "Set it with `sudo timedatectl set-ntp true`, or by hand with `sudo date -s '2026-01-31 12:00:00'`."
    if now < NOT_BEFORE:
        yield error(f"The clock says {_date(now)}, which is long past: no certificate is valid yet.", right)
        return
    theirs = _server_time(context)
    if theirs is None:
        yield ok(f"{_date(now)}; it could not be compared with the API server's")
        return
    skew = now - theirs
    message = f"The clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the API server's"
    if abs(skew) > MOST_SKEW:
        yield error(f"{message}, so certificates and tokens will be refused.", right)
    elif abs(skew) > GOOD_SKEW:
        yield warning(f"{message}.", right)
    else:
        yield ok(f"{_date(now)}, as at the API server")


def _server_time(context: PreflightContext) -> float | None:
    if not _can_ask(context):
        return None
    try:
        return _ask(context, "/healthz").date
    except ProbeFailed:
        return None


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def check_token(context: PreflightContext) -> Iterator[CheckFinding]:
    secret = resolved.join_token(context.config)
    if context.has_credential:
        yield ok("not needed any more: the node has a certificate of its own")
    elif resolved.kubelet_auth(context.config) != "bootstrapToken":
        yield ok("none: the node shows the cluster its Azure identity")
    elif secret is None:
        yield error(_no_token(context.config), NEW_TOKEN_HINT)
    elif bootstrap_token(secret.reveal()):
        shape = "6 characters, a dot and 16 characters, all of a-z and 0-9"
        yield error(
            f"azure.bootstrapToken.token is not a bootstrap token: {shape}. It is not shown here.", NEW_TOKEN_HINT
        )
    elif _awaits_tunnel(context):
        yield ok("it is tried when there is a tunnel to the API server")
    elif _can_ask(context):
        yield _tried(context, secret)
    else:
        yield warning("The bootstrap token is well-formed, but there is no API server to try it on.", API_SERVER_HINT)


def _no_token(config: NodeConfig) -> str:
    named = config.azure.bootstrap_token.token_file if config.azure.bootstrap_token else None
    if named:
        return f"azure.bootstrapToken.tokenFile names {named}, which is not there."
    return "The configuration has no bootstrap token, nor another way to join."


def _tried(context: PreflightContext, secret: Secret) -> CheckFinding:
    try:
        heard = _ask(context, ACCESS_REVIEW_PATH, secret)
    except ProbeFailed:
        return warning(
            "The bootstrap token is well-formed, but the API server could not be asked about it.", API_SERVER_HINT
        )
    if heard.status == 401:
        return error(
            "The API server does not know the bootstrap token: it expired, or is another cluster's.", NEW_TOKEN_HINT
        )
    status = heard.document.get("status")
    if isinstance(status, dict) and not status.get("allowed", False):
        return error(
            "The API server knows the bootstrap token, but it may not ask for a node's certificate.",
            "Bind its group to the role system:node-bootstrapper: `kubectl create clusterrolebinding flex-nodes"
            " --clusterrole=system:node-bootstrapper --group=system:bootstrappers`.",
        )
    if heard.status >= 400:
        return warning(
            f"The API server answered status {heard.status} when asked about the bootstrap token.", API_SERVER_HINT
        )
    return ok("the API server knows it, and it may ask for a node's certificate")
