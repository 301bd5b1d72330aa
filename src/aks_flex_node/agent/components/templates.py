"""Renders text for several components: templates with $name values, kubeconfigs, and proxy environment files."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.reconcile.resources import MANAGED_MARK

if TYPE_CHECKING:
    from aks_flex_node.settings.models import NodeConfig, Proxy


def render_template(package: str, name: str, **values: str) -> bytes:
    return Template(_read_template(package, name)).substitute(values, mark=MANAGED_MARK).encode()


@cache
def _read_template(package: str, name: str) -> str:
    """Reads a template once: the version of the running agent may be removed while it runs.

    importlib.resources would load modules for archives, half a megabyte in the daemon.
    """
    return (Path(str(sys.modules[package].__file__)).parent / name).read_text()


def command_argument(text: str) -> str:
    """Escapes what systemd would replace in a command line of a unit: percent specifiers and variables."""
    return text.replace("%", "%%").replace("$", "$$")


ENTRY_NAME = "aks-flex-node"


def kubeconfig(config: NodeConfig, user: dict[str, Any]) -> bytes:
    cluster = {
        "server": config.node.kubelet.server_url,
        "certificate-authority": f"{config.paths.kubernetes.certs_dir}/ca.crt",
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": ENTRY_NAME, "cluster": cluster}],
        "users": [{"name": ENTRY_NAME, "user": user}],
        "contexts": [{"name": ENTRY_NAME, "context": {"cluster": ENTRY_NAME, "user": ENTRY_NAME}}],
        "current-context": ENTRY_NAME,
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def exec_user(config: NodeConfig) -> dict[str, Any]:
    """Returns a kubeconfig user that runs the token script to get a token of the node's Azure identity."""
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": token_script(config),
            "interactiveMode": "Never",
            "provideClusterInfo": False,
        }
    }


def token_script(config: NodeConfig) -> str:
    return f"{config.paths.kubernetes.kubelet_dir}/token.sh"


def proxy_environment(proxy: Proxy) -> str:
    """Renders the proxies as lines of an environment file; empty when there is no proxy."""
    values = {"HTTP_PROXY": proxy.http, "HTTPS_PROXY": proxy.https, "NO_PROXY": ",".join(proxy.no_proxy)}
    if not (proxy.http or proxy.https):
        return ""
    return "".join(f'{name}="{_escape_value(value)}"\n' for name, value in values.items() if value)


def _escape_value(value: str) -> str:
    """Escapes characters that are special to systemd inside double quotes."""
    return "".join(f"\\{char}" if char in '"\\`$' else char for char in value)
