"""Signing in: from a configuration to a token, or to a client of Azure's resource manager.

This loads Azure's libraries, so no process that stays does it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.identities.clouds import authority_host, resource_manager, ways_out
from aks_flex_node.agent.identities.who import node_credential, operator_credential
from aks_flex_node.api.value_rules import read_certificate
from aks_flex_node.azure.arm import Arm, is_unanswered, not_signed_in
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.config.models import NodeConfig

# What it has to say of a sign-in that failed is in the error, which is told once.
logging.getLogger("azure").setLevel(logging.CRITICAL)
SYSTEM_TRUST = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True)
class Token:
    value: str = field(repr=False)
    expires: float  # unix time


def sign_in(config: NodeConfig, scope: str, *, operator: bool = False) -> Token:
    """A token of the node's own identity, or of its operator's."""
    from azure.core import exceptions as azure

    with trust(config) as file:
        try:
            credential = operator_credential(config, file) if operator else node_credential(config, file)
            token = credential.get_token(scope)
        except azure.ClientAuthenticationError as error:
            if is_unanswered(error):
                raise unreachable(config, error.message) from None
            raise not_signed_in(error.message) from None
        except azure.AzureError as error:
            raise unreachable(config, error.message) from None
    return Token(token.token, float(token.expires_on))


@contextlib.contextmanager
def arm(config: NodeConfig, *, operator: bool = False) -> Iterator[Arm]:
    """Azure's resource manager, as this node or as its operator."""
    with trust(config) as file:
        credential = operator_credential(config, file) if operator else node_credential(config, file)
        endpoint = resource_manager(config)
        client = Arm(credential, endpoint, ca_file=file, proxy=ways_out(config).proxy_for(endpoint))
        with contextlib.closing(client):
            yield client


@contextlib.contextmanager
def trust(config: NodeConfig) -> Iterator[str | None]:
    """A file of the authorities to believe: a private cloud's, else the system's, else those that Python brings."""
    if not config.azure.ca_cert_data:
        yield str(SYSTEM_TRUST) if SYSTEM_TRUST.exists() else None
        return
    # In memory: a child that is killed leaves nothing behind.
    with os.fdopen(os.memfd_create("authorities"), "wb") as file:
        file.write(read_certificate(config.azure.ca_cert_data) or b"")
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def unreachable(config: NodeConfig, cause: str) -> FlexError:
    words = cause.rsplit(": ", 1)[-1].strip(" ()'\".") or "unknown cause"
    return FlexError(
        "sign-in-unreachable",
        f"{authority_host(config)} cannot be asked for a token: {words}.",
        "Check the network, the proxy (proxy.https) and the clock of this machine; the agent tries again by itself.",
        again=True,
    )
