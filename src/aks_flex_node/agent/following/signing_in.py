"""The child that signs in: reads a configuration on standard input, and answers with a token or with the cause."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.following.endpoints import authority_host, require_identity, scope, ways_out
from aks_flex_node.api.value_rules import read_certificate
from aks_flex_node.azure import credentials
from aks_flex_node.azure.arm import not_signed_in
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from azure.core.credentials import TokenCredential

    from aks_flex_node.agent.config.models import NodeConfig

SYSTEM_TRUST = Path("/etc/ssl/certs/ca-certificates.crt")


def answer() -> None:
    """What `aks-flex-node azure-token` does. The token goes to a pipe, and nowhere else."""
    if sys.stdout.isatty():
        print("This is for the agent itself: it prints a token, which belongs into no terminal.", file=sys.stderr)
        sys.exit(2)
    try:
        said = sign_in(sys.stdin.read())
    except FlexError as error:
        about = {"name": error.name, "message": error.message, "hint": error.hint, "again": error.again}
        said = {"error": about}
    print(json.dumps(said))


def sign_in(bundle: str) -> dict[str, Any]:
    from aks_flex_node.agent.config.loader import load_text  # noqa: PLC0415

    config = load_text(bundle, "the node's configuration", {}, {}).config
    _use_proxies(config)
    from azure.core import exceptions as azure  # noqa: PLC0415

    with _trust(config) as file:
        try:
            token = credential(config, file).get_token(scope(config))
        except azure.ClientAuthenticationError as error:
            if isinstance(
                error.__context__, azure.ServiceRequestError | azure.ServiceResponseError
            ):  # nobody refused anything
                raise unreachable(config, error.message) from None
            raise not_signed_in(error.message) from None
        except azure.AzureError as error:
            raise unreachable(config, error.message) from None
    return {"token": token.token, "seconds": max(0.0, token.expires_on - time.time())}


def credential(config: NodeConfig, ca_file: str | None) -> TokenCredential:
    """Who this node is to Azure."""
    azure = config.azure
    authority = credentials.Authority(authority_host(config), ca_file)
    require_identity(config)
    principal = azure.service_principal
    if principal and principal.client_secret:
        tenant, secret = principal.tenant_id or azure.tenant_id or "", principal.client_secret.reveal()
        return credentials.service_principal(tenant, principal.client_id, secret, authority)
    return credentials.managed_identity(azure.managed_identity.client_id if azure.managed_identity else None)


@contextlib.contextmanager
def _trust(config: NodeConfig) -> Iterator[str | None]:
    """A file of the authorities to believe: a private cloud's, else the system's, else those that Python brings."""
    if not config.azure.ca_cert_data:
        yield str(SYSTEM_TRUST) if SYSTEM_TRUST.exists() else None
        return
    # In memory: a child that is killed leaves nothing behind.
    with os.fdopen(os.memfd_create("authorities"), "wb") as file:
        file.write(read_certificate(config.azure.ca_cert_data) or b"")
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _use_proxies(config: NodeConfig) -> None:
    """Azure's libraries look for proxies in the environment."""
    sources = ways_out(config)
    if proxy := sources.proxy_for(authority_host(config)):
        os.environ["HTTPS_PROXY"] = proxy
        os.environ["NO_PROXY"] = "169.254.169.254,127.0.0.1,localhost"


def unreachable(config: NodeConfig, cause: str) -> FlexError:
    words = cause.rsplit(": ", 1)[-1].strip(" ()'\".") or "unknown cause"
    return FlexError(
        "sign-in-unreachable",
        f"{authority_host(config)} cannot be asked for a token: {words}.",
        "Check the network, the proxy (proxy.https) and the clock of this machine; the agent tries again by itself.",
        again=True,
    )
