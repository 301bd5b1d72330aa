"""Managed identities of machines: of an Azure VM (IMDS), and of a machine connected to Azure Arc (HIMDS)."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aks_flex_node.azure.arm import AzureCallError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from azure.core.credentials import AccessToken

IMDS = "http://169.254.169.254"
HIMDS = "http://127.0.0.1:40342"
# azcmagent publishes its endpoint in this file, which only services that start later can see in their environment.
HIMDS_FILES = ("/lib/systemd/system.conf.d/azcmagent.conf", "/etc/systemd/system.conf.d/azcmagent.conf")
TOKEN_PATH = "/metadata/identity/oauth2/token"  # noqa: S105
REACH_SECONDS = 3.0
# Variables of other hosts (App Service, pods), which azure-identity supports.
OTHER_IDENTITY_VARIABLES = ("IDENTITY_ENDPOINT", "MSI_ENDPOINT", "AZURE_FEDERATED_TOKEN_FILE")
_SERVICE_MESSAGE = re.compile(r"Token request error: \([^)]*\) *(.*)", re.DOTALL)


class ImdsCredential:
    """The managed identity of this Azure VM. `client_id` selects one of several."""

    def __init__(self, client_id: str | None = None) -> None:
        self._client_id = client_id

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        from azure.core.exceptions import ClientAuthenticationError  # noqa: PLC0415

        where = os.environ.get("AZURE_POD_IDENTITY_AUTHORITY_HOST", IMDS)
        if not any(name in os.environ for name in OTHER_IDENTITY_VARIABLES) and (cause := _connection_error(where)):
            raise AzureCallError(
                "managed-identity-unavailable",
                f"The managed identity is not available: {where} does not respond ({cause}).",
                "Only Azure VMs have a managed identity. On other machines, set `azure.servicePrincipal` or "
                "`azure.arc`.",
                retryable=True,
            )
        try:
            return _local_token(scopes, self._client_id)
        except ClientAuthenticationError as error:
            which = f"the identity {self._client_id}" if self._client_id else "a system-assigned identity"
            raise AzureCallError(
                "managed-identity-not-found",
                f"This VM does not have {which}: {service_message(error.message)}.",
                "Assign one with `az vm identity assign`, and check `azure.managedIdentity.clientId`.",
                retryable=False,
                status=401,
            ) from None


class ArcCredential:
    """The identity of a machine that is registered with Azure Arc. Its agent authorizes callers with a key file."""

    def __init__(self, endpoint: str = "") -> None:
        self._endpoint = endpoint

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        from azure.core.exceptions import AzureError  # noqa: PLC0415

        where = self._endpoint or himds_endpoint()
        if cause := _connection_error(where):
            raise AzureCallError(
                "arc-agent-unavailable",
                f"The Azure Arc agent does not respond at {where} ({cause}).",
                "Check `azcmagent show` and `systemctl status himdsd`. If the machine is not registered yet, run "
                "`aks-flex-node arc register`.",
                retryable=True,
            )
        with _environment({"IDENTITY_ENDPOINT": where + TOKEN_PATH, "IMDS_ENDPOINT": where}):
            try:
                return _local_token(scopes)
            except PermissionError as error:
                raise AzureCallError(
                    "arc-key-unreadable",
                    f"The key file {error.filename!s}, with which the Azure Arc agent authorizes callers, cannot be "
                    "read.",
                    "Run the command as root, or as a member of the group himds.",
                    retryable=False,
                ) from None
            except OSError as error:
                raise _arc_refused(f"{error.filename}: {error.strerror}") from None
            except AzureError as error:
                raise _arc_refused(service_message(error.message)) from None


def _local_token(scopes: tuple[str, ...], client_id: str | None = None) -> AccessToken:
    """Requests a token from a service of this machine, for which the proxy for other hosts must not be used."""
    from azure.identity import ManagedIdentityCredential  # noqa: PLC0415

    from aks_flex_node.azure.transport import BoundedTransport  # noqa: PLC0415

    local = BoundedTransport(use_env_settings=False)
    token: AccessToken = ManagedIdentityCredential(client_id=client_id, transport=local, retry_total=3).get_token(
        *scopes
    )
    return token


def himds_endpoint() -> str:
    """Returns the endpoint of the Azure Arc agent, as the agent publishes it."""
    for file in HIMDS_FILES:
        with contextlib.suppress(OSError):
            if found := parse_himds_endpoint(Path(file).read_text()):
                return found
    return HIMDS


def parse_himds_endpoint(text: str) -> str:
    """Parses the endpoint from the systemd configuration file of azcmagent. Returns an empty string if missing."""
    found = re.search(r"\bIMDS_ENDPOINT=(http://(?:127\.0\.0\.1|localhost|\[::1\])(?::\d+)?)", text)
    return found[1] if found else ""


def service_message(message: str) -> str:
    """Returns the message of the local service without the additions of the library."""
    found = _SERVICE_MESSAGE.search(message)
    lines = (found[1] if found else message).strip().splitlines()
    return lines[0].strip(" .")[:300] if lines and lines[0].strip() else "no message"


def _connection_error(where: str) -> str:
    """Returns why the endpoint cannot be reached, or an empty string. The library alone would retry for half a
    minute.
    """
    parts = urlsplit(where)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), REACH_SECONDS).close()
    except OSError as error:
        return (error.strerror or str(error) or "no response").lower()
    return ""


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for azure-identity, and restores them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _arc_refused(reason: str) -> AzureCallError:
    return AzureCallError(
        "arc-identity-rejected",
        f"The Azure Arc agent issued no token: {reason.strip(' .')}.",
        "Check with `azcmagent show` whether the machine is connected, and with `azcmagent check` whether it can "
        "reach Azure.",
        retryable=True,
        status=401,
    )
