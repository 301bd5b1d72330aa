"""The credentials component: the cluster CA and the credentials with which the kubelet joins.

The kubelet joins with a bootstrap token, or with a token of the node's Azure identity, which a script gets.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.templates import exec_user, kubeconfig, render_template, token_script
from aks_flex_node.agent.config.resolved import CLOUD_SETTINGS, ca_certificate, join_token, kubelet_auth
from aks_flex_node.agent.identity.azure_sign_in import identity_kind
from aks_flex_node.agent.identity.token_cache import IDENTITY_FILE
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import Directory, File, RuntimePath, Spec
from aks_flex_node.host.actions import Remove
from aks_flex_node.settings.base import to_document
from aks_flex_node.settings.table import file_settings

if TYPE_CHECKING:
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig

CLIENT_CERTIFICATE = re.compile(
    r"kubelet-client(-.+)?\.(pem|crt|key)(\.tmp|\.damaged)?"
)  # names of the kubelet, and set aside


def desired(config: NodeConfig, machine: Machine) -> Spec:
    paths, auth = config.paths.kubernetes, kubelet_auth(config)
    files = [] if auth == "bootstrapToken" else list(by_identity(config, machine))
    return Spec(
        (
            Directory(paths.config_dir),
            Directory(paths.certs_dir),
            Directory(paths.kubelet_dir, 0o755, ours=True),
            File(f"{paths.certs_dir}/ca.crt", ca_certificate(config) or b""),
            *files,
            *bootstrap(config),
        )
    )


def bootstrap(config: NodeConfig) -> tuple[File | RuntimePath, ...]:
    """Returns the bootstrap kubeconfig, which the kubelet uses until it has a certificate."""
    path, auth = f"{config.paths.kubernetes.kubelet_dir}/bootstrap-kubeconfig", kubelet_auth(config)
    if auth == "certificate":
        return (File(path, kubeconfig(config, exec_user(config)), 0o600),)
    if auth == "exec":
        return ()
    if secret := join_token(config):
        return (File(path, kubeconfig(config, {"token": secret.reveal()}), 0o600, secret=True),)
    # Without the token, keep an existing bootstrap kubeconfig: the token file does not exist any more, or the token
    # came with the bootstrap data of a pool and is not stored.
    kept = config.azure.bootstrap_token or config.azure.target_agent_pool_name
    return (RuntimePath(path),) if kept else ()


def by_identity(config: NodeConfig, machine: Machine) -> tuple[File, ...]:
    """Returns the identity file and the script that gets tokens for the kubelet."""
    identity = f"{config.paths.kubernetes.kubelet_dir}/{IDENTITY_FILE}"
    values = {
        "launcher": f"{config.paths.install_dir}/agent/launch",
        "program": machine.program,
        "identity": identity,
    }
    script = render_template(__name__, "token.sh", **{name: shlex.quote(value) for name, value in values.items()})
    return (
        File(identity, identity_text(config), 0o600, secret=True),
        File(token_script(config), script, 0o700),
    )


def identity_text(config: NodeConfig) -> bytes:
    """Renders the settings required to sign in as this node: cloud, identity and proxies. Excludes the operator's
    credentials."""
    kind = identity_kind(config)
    settings = to_document(config.azure, "nulls", reveal=True)
    azure = {name: value for name, value in settings.items() if name in {*CLOUD_SETTINGS, kind}}
    principal = azure.get("servicePrincipal", {})
    for content, file in file_settings().items():
        if file.rpartition(".")[2] in principal:  # read at each sign-in, so that a rotated secret is used
            principal.pop(content.rpartition(".")[2], None)
    if kind == "arc":
        azure["arc"] = {"enabled": True}
    proxy = config.proxy
    proxies = {"http": proxy.http, "https": proxy.https, "noProxy": list(proxy.no_proxy)}
    document = {"azure": azure, "proxy": {name: value for name, value in proxies.items() if value}}
    return (json.dumps({"config": document}, indent=1, sort_keys=True) + "\n").encode()


def unused_certificates(host: Host, config: NodeConfig) -> tuple[Remove, ...]:
    """Returns the removal of the client certificates and keys of a kubelet that signs in with its Azure identity.

    They stay valid for up to a year. To be applied when the node works without them, because a rollback needs them.
    """
    if kubelet_auth(config) != "exec":
        return ()
    folder = f"{config.paths.kubernetes.kubelet_dir}/pki"
    return tuple(Remove(f"{folder}/{name}") for name in host.list_dir(folder) if CLIENT_CERTIFICATE.fullmatch(name))


COMPONENT = Component("credentials", "cluster CA and bootstrap credentials", desired)
