"""Azure credentials of all kinds. azure-identity is imported on first use, because it needs 0.3 s and 40 MiB."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.azure.managed_identity import ImdsCredential
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from azure.core.credentials import AccessToken, TokenCredential

PUBLIC_AUTHORITY = "https://login.microsoftonline.com"
SIGN_IN_RETRIES = 2  # the caller retries as well
# Authorities of the public clouds. Instance discovery rejects all others, so it is disabled for them.
PUBLIC_AUTHORITY_HOSTS = frozenset(
    (
        "login.microsoftonline.com",
        "login.chinacloudapi.cn",
        "login.microsoftonline.us",
        "login.partner.microsoftonline.cn",
    )
)


@frozen
class TokenAuthority:
    """An Entra ID authority that issues tokens."""

    host: str = PUBLIC_AUTHORITY
    ca_file: str | None = None  # for an authority with a private CA
    proxy: str | None = None  # proxy to the authority

    @property
    def is_private(self) -> bool:
        return urlsplit(self.host).hostname not in PUBLIC_AUTHORITY_HOSTS

    def options(self) -> dict[str, Any]:
        """Returns the options of azure-identity for this authority."""
        from aks_flex_node.azure.transport import BoundedTransport  # noqa: PLC0415

        options: dict[str, Any] = {
            "authority": self.host,
            "transport": BoundedTransport(**self.trust()),
            "retry_total": SIGN_IN_RETRIES,
        }
        if self.is_private:
            options["disable_instance_discovery"] = True
        if self.proxy:
            options["proxies"] = {"https": self.proxy}
        return options

    def trust(self) -> dict[str, Any]:
        return {"connection_verify": self.ca_file} if self.ca_file else {}


def service_principal(tenant: str, client_id: str, secret: str, authority: TokenAuthority) -> TokenCredential:
    from azure.identity import ClientSecretCredential  # noqa: PLC0415

    return ClientSecretCredential(tenant, client_id, secret, **authority.options())


def service_principal_by_certificate(
    tenant: str, client_id: str, pem: bytes, authority: TokenAuthority
) -> TokenCredential:
    """Returns the credential of a service principal. `pem` has a certificate and its private key, in any order."""
    from azure.identity import CertificateCredential  # noqa: PLC0415

    options = authority.options()
    try:
        return CertificateCredential(tenant, client_id, certificate_data=pem, **options)
    except (ValueError, TypeError) as error:
        sentence = (str(error).splitlines() or [""])[0].partition(". ")[0].strip(" .")
        raise AzureCallError(
            "client-certificate-invalid",
            f"The certificate of the service principal cannot be used: {sentence or 'it cannot be parsed'}.",
            "Use PEM with a certificate and its RSA private key without a password.",
            retryable=False,
        ) from None


def managed_identity(client_id: str | None = None) -> TokenCredential:
    """Returns the credential of this Azure VM's (or pod's) managed identity. `client_id` selects one of several."""
    return ImdsCredential(client_id)


def workload_identity(tenant: str, client_id: str, token_file: str, authority: TokenAuthority) -> TokenCredential:
    """Returns the credential of an identity that trusts the issuer of the token in a file."""
    try:
        Path(token_file).read_bytes()
    except OSError as error:
        raise AzureCallError(
            "federated-token-unreadable",
            f"The federated token file {token_file} cannot be read: {error.strerror}.",
            "Check `azure.workloadIdentity.tokenFile`, and that the program that writes the token is running.",
            retryable=True,
        ) from None
    from azure.identity import WorkloadIdentityCredential  # noqa: PLC0415

    options = authority.options()
    return WorkloadIdentityCredential(tenant_id=tenant, client_id=client_id, token_file_path=token_file, **options)


def default_credential(authority: TokenAuthority | None = None) -> TokenCredential:
    """Returns the default credential: environment, workload identity, managed identity, or `az login`."""
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415

    options = authority.options() if authority else {}  # otherwise AZURE_AUTHORITY_HOST applies
    return DefaultAzureCredential(
        **options, exclude_interactive_browser_credential=True, exclude_powershell_credential=True
    )


class FirstWorkingCredential:
    """Uses the first of several credentials that signs in. If all fail, raises one error with all messages and the
    hint of the first.
    """

    def __init__(self, candidates: Sequence[TokenCredential]) -> None:
        self._candidates = tuple(candidates)

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        failed: list[AzureCallError] = []
        for each in self._candidates:
            try:
                token = each.get_token(*scopes)
            except AzureCallError as error:
                failed.append(error)
            else:
                self._candidates = (each,)  # used from now on
                return token
        first = failed[0]  # at least one credential failed
        first.message = " ".join(error.message for error in failed)
        first.retryable = any(error.retryable for error in failed)
        raise first
