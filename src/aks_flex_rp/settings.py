"""Settings of the service: one YAML file, a few environment variables, and defaults that work on one machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from aks_flex_node.api.audiences import may_send_token
from aks_flex_node.errors import ConfigError
from aks_flex_rp import DEFAULT_CONFIG_FILE
from aks_flex_rp.auth.auth_settings import (
    ARM_AUDIENCES,
    AuthSettings,
    ConnectionSettings,
    LimitSettings,
    LowercaseEntraId,
    SettingsModel,
    check_audiences,
)
from aks_flex_rp.notify.notification_settings import NotificationSettings
from aks_flex_rp.rollout_settings import RolloutSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_rp.auth.auth_settings import RoleGrant, TenantSettings


class EntraSignInSettings(SettingsModel):
    """An application registration for dashboard sign-in with redirect URI (web) <publicUrl>/ui/sign-in/entra/done."""

    tenant_id: LowercaseEntraId = Field(description="Tenant whose users can sign in.")
    client_id: LowercaseEntraId = Field(description="Client ID of the application registration.")
    client_secret_file: Path | None = Field(default=None, description="File (mode 0600) with the client secret.")
    client_certificate_file: Path | None = Field(
        default=None, description="File (mode 0600) with the certificate and key (PEM), instead of a client secret."
    )

    @model_validator(mode="after")
    def _check_credential(self) -> EntraSignInSettings:
        if (self.client_secret_file is None) == (self.client_certificate_file is None):
            raise PydanticCustomError("one", "set either clientSecretFile or clientCertificateFile")
        return self


class DashboardSettings(SettingsModel):
    enabled: bool = Field(default=True, description="Enable the dashboard.")
    entra: EntraSignInSettings | None = Field(
        default=None, description="Sign-in with Entra ID. If not set, only the local admin key can sign in."
    )
    admin_key: bool = Field(default=True, description="Allow sign-in with the local admin key.")
    session_hours: float = Field(default=8, gt=0, le=24, description="Maximum length of a session, in hours.")
    idle_minutes: float = Field(
        default=60, ge=5, le=1440, description="Idle time after which a session ends, in minutes."
    )


DEFAULT_STATE_DIR = Path("/var/lib/aks-flex-rp")
DEFAULT_PORT = 8443


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise PydanticCustomError("address", "must be an address and a port, such as 0.0.0.0:8443 or [::]:8443")
    return text


def _origin(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "https" or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
        raise PydanticCustomError("origin", "must be an origin such as https://flex.example.com:8443, without a path")
    return text.rstrip("/")


class TlsSettings(SettingsModel):
    certificate_file: Path | None = Field(
        default=None,
        description="Certificate with its chain (PEM). If not set, the service creates a private CA and certificate.",
    )
    key_file: Path | None = Field(default=None, description="Private key of the certificate (PEM).")
    names: tuple[str, ...] = Field(
        default=(), description="Additional names and addresses in the certificate that the private CA issues."
    )

    @model_validator(mode="after")
    def _check_pair(self) -> TlsSettings:
        if (self.certificate_file is None) != (self.key_file is None):
            raise PydanticCustomError("pair", "set both certificateFile and keyFile, or neither")
        return self


class BlobSettings(SettingsModel):
    connection_string_file: Path | None = Field(
        default=None, description="File (mode 0600) with the connection string of the storage account."
    )
    account_url: str | None = Field(
        default=None,
        description="URL of the storage account, accessed with the service's Azure identity.",
    )
    container: str = Field(default="flexnode-configs", description="Container for config bundles.")


class DeliverySettings(SettingsModel):
    method: Literal["builtIn", "azureBlob"] = Field(
        default="builtIn", description="Where machines fetch their config bundle."
    )
    azure_blob: BlobSettings | None = Field(default=None, description="Storage account for `azureBlob`.")

    @model_validator(mode="after")
    def _check_account(self) -> DeliverySettings:
        blob = self.azure_blob
        if self.method == "azureBlob" and not (blob and (blob.connection_string_file or blob.account_url)):
            raise PydanticCustomError("blob", "set azureBlob with connectionStringFile or accountUrl")
        return self


class AzureSettings(SettingsModel):
    resource_manager: Annotated[str, AfterValidator(_origin)] = Field(
        default="https://management.azure.com",
        description="Azure Resource Manager endpoint. Nodes receive it if it is not the default.",
    )
    authority: Annotated[str, AfterValidator(_origin)] = Field(
        default="https://login.microsoftonline.com",
        description="Entra ID endpoint for the service's sign-in. Nodes receive it if it is not the default.",
    )
    ca_file: Path | None = Field(default=None, description="CA certificates (PEM) of a private cloud.")
    tenant_id: str | None = Field(default=None, description="Tenant of the service's Azure identity.")
    client_id: str | None = Field(
        default=None, description="Client ID of the identity. Without a secret, the ID of a managed identity."
    )
    client_secret_file: Path | None = Field(default=None, description="File (mode 0600) with the client secret.")


class TokenSettings(SettingsModel):
    hours: float = Field(
        default=24, gt=0, le=24 * 6, description="Lifetime of a bootstrap token and its config URL, in hours."
    )
    grace_seconds: float = Field(
        default=60,
        ge=1,
        le=3600,
        description="Lifetime of a used token whose certificate is not issued yet, in seconds.",
    )


class NodeLifecycleSettings(SettingsModel):
    gone_after_minutes: float = Field(
        default=60,
        gt=0,
        description="Time for which the Node of a deleted resource must be NotReady before the service deletes it.",
    )
    allow_exec: bool = Field(
        default=False,
        description="Let owners create nodes whose kubelet uses its Azure identity for every request "
        "(`kubernetesAuth.method: exec`), outside the cluster's restrictions for nodes. Existing ones keep working.",
    )
    shared_addresses: bool = Field(
        default=False,
        description="Approve serving certificates for an address that another flex node also has. For sites with the "
        "same private addresses; a node can then serve as the other one.",
    )
    poll_seconds: float = Field(
        default=30, ge=1, le=3600, description="Poll interval of managed nodes whose polls are not held, in seconds."
    )


class LogSettings(SettingsModel):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Minimum level of log messages."
    )
    format: Literal["json", "text"] = Field(default="json", description="`json` (one object per line) or `text`.")


class ServiceSettings(SettingsModel):
    listen: Annotated[str, AfterValidator(_address)] = Field(
        default=f"0.0.0.0:{DEFAULT_PORT}", description="Address and port to listen on."
    )
    public_url: Annotated[str, AfterValidator(_origin)] | None = Field(
        default=None, description="URL at which machines reach the service. Default: the host name and the port."
    )
    agents_url: Annotated[str, AfterValidator(_origin)] | None = Field(
        default=None,
        description="URL for managed nodes if it differs from publicUrl: a gateway or ARM in front of the service.",
    )
    state_dir: Path = Field(
        default=DEFAULT_STATE_DIR, description="Directory for keys, certificates and the SQLite database."
    )
    database: str | None = Field(
        default=None, description="`postgresql://…` for several replicas. If not set, a SQLite file in stateDir."
    )
    database_file: Path | None = Field(
        default=None, description="File (mode 0600) with the `postgresql://…` address, which may contain a password."
    )
    database_insecure: bool = Field(
        default=False,
        description="Accept a PostgreSQL server on the network without `sslmode=verify-full`. Anyone on that network "
        "can then read and change the database.",
    )
    keys_file: Path | None = Field(
        default=None, description="Encryption keys for secrets. Default: `keys` in stateDir."
    )
    tls: TlsSettings = Field(default_factory=TlsSettings, description="TLS.")
    auth: AuthSettings = Field(default_factory=AuthSettings, description="Authentication and authorization.")
    limits: LimitSettings = Field(default_factory=LimitSettings, description="Rate limits per caller.")
    delivery: DeliverySettings = Field(default_factory=DeliverySettings, description="Delivery of config bundles.")
    azure: AzureSettings = Field(default_factory=AzureSettings, description="Access of the service to Azure.")
    tokens: TokenSettings = Field(default_factory=TokenSettings, description="Bootstrap tokens.")
    nodes: NodeLifecycleSettings = Field(
        default_factory=NodeLifecycleSettings, description="Nodes in their clusters."
    )
    notifications: NotificationSettings = Field(
        default_factory=NotificationSettings, description="Webhook notifications of node events."
    )
    rollouts: RolloutSettings = Field(default_factory=RolloutSettings, description="Gates of roll-outs.")
    audit_days: Annotated[int, Field(ge=1, le=36500)] = Field(
        default=365, description="Retention of audit events, in days."
    )
    keep_alive_seconds: Annotated[int, Field(ge=1, le=3600)] = Field(
        default=75,
        description="Timeout of an idle connection. Above the poll interval, polls reuse connections.",
    )
    connections: ConnectionSettings = Field(
        default_factory=ConnectionSettings, description="Bounds on open connections."
    )
    metrics_token_file: Path | None = Field(
        default=None,
        description="File with a token that clients of `/metrics` must send (`Authorization: Bearer TOKEN`). If "
        "not set, only clients on the same host can read the metrics; set it behind a proxy on that host.",
    )
    dashboard: DashboardSettings = Field(default_factory=DashboardSettings, description="Web dashboard.")
    log: LogSettings = Field(default_factory=LogSettings, description="Logging.")

    @model_validator(mode="after")
    def _check_audiences(self) -> ServiceSettings:
        for number, tenant in enumerate(self.auth.tenants):
            check_audiences(self.auth, number, tenant, self.azure.resource_manager)
            self.node_audience(tenant)
        return self

    @model_validator(mode="after")
    def _check_grants(self) -> ServiceSettings:
        tenants = self._tenants()
        for number, grant in enumerate(self.auth.roles):
            if grant.tenant_id is None and len(tenants) > 1:
                raise PydanticCustomError(
                    "grant_tenant",
                    "auth.roles[{number}].tenantId: set the tenant of principal {principal}, because the service "
                    "accepts several tenants ({tenants}), and an application can have the same ID in each",
                    {"number": number, "principal": grant.principal, "tenants": ", ".join(tenants)},
                )
        if self.auth.azure_role_assignments and tenants and self.assignments_tenant is None:
            raise PydanticCustomError(
                "assignments_tenant",
                "azure.tenantId: set the tenant of the subscriptions of {manager}, because auth.azureRoleAssignments "
                "is true and the service accepts several tenants ({tenants}); principals of the others have no role "
                "there",
                {"manager": self.azure.resource_manager, "tenants": ", ".join(tenants)},
            )
        return self

    @property
    def assignments_tenant(self) -> str | None:
        """Returns the tenant whose principals the role assignments of Azure, or a private cloud, name."""
        tenants = self._tenants()
        only = tenants[0] if len(tenants) == 1 else None
        return (self.azure.tenant_id or only or "").lower() or None

    @property
    def role_grants(self) -> tuple[RoleGrant, ...]:
        """Returns the role grants with their tenants. A grant without one belongs to the only tenant."""
        only = next(iter(self._tenants()), None)
        return tuple(
            grant if grant.tenant_id else grant.model_copy(update={"tenant_id": only}) for grant in self.auth.roles
        )

    def _tenants(self) -> list[str]:
        entra = self.dashboard.entra
        return list(
            dict.fromkeys([*(each.tenant_id for each in self.auth.tenants), *([entra.tenant_id] if entra else [])])
        )

    def node_audience(self, tenant: TenantSettings) -> str:
        """Returns the audience with which the nodes of a tenant call the service: the first that they may send."""
        accepted, origin = tenant.audiences or ARM_AUDIENCES, self.agents_url or self.origin
        allowed = (each for each in accepted if may_send_token(each, origin, self.azure.resource_manager))
        if found := next(allowed, None):
            return found
        raise PydanticCustomError(
            "node_audience",
            "auth.tenants: nodes call the service at {origin}, and never send it tokens that another service may "
            "accept, such as Azure. Add an audience of the service's own to the audiences of tenant {tenant}, such "
            "as api://CLIENT-ID, or set agentsUrl to Azure Resource Manager",
            {"origin": origin, "tenant": tenant.tenant_id},
        )

    @property
    def origin(self) -> str:
        return self.public_url or f"https://{socket.getfqdn()}:{self.port}"

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def admin_key_file(self) -> Path:
        return self.state_dir / "admin.key"

    @property
    def sqlite_file(self) -> Path:
        return self.state_dir / "flex.db"

    @property
    def keys(self) -> Path:
        return self.keys_file or self.state_dir / "keys"

    @property
    def names(self) -> tuple[str, ...]:
        """Returns all names in the certificate that the private CA issues."""
        host = urlsplit(self.origin).hostname or "localhost"
        own = (host, socket.gethostname(), "localhost", "127.0.0.1", *self.tls.names)
        listening = () if self.host in {"0.0.0.0", "::"} else (self.host,)  # noqa: S104 - compared, not bound
        return tuple(dict.fromkeys((*own, *listening)))


def load(file: Path | None, env: Mapping[str, str], **flags: object) -> ServiceSettings:
    """Loads the settings: flags override the environment, which overrides the file.

    A file that is named explicitly must exist; the default file is optional.
    """
    named = file or (Path(env["AKS_FLEX_RP_CONFIG"]) if env.get("AKS_FLEX_RP_CONFIG") else None)
    document = _read(named or Path(DEFAULT_CONFIG_FILE), needed=named is not None)
    if not document.get("stateDir") and not env.get("AKS_FLEX_RP_STATE") and os.geteuid() != 0:
        home = env.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        document["stateDir"] = str(Path(home) / "aks-flex-rp")
    values = {
        "stateDir": env.get("AKS_FLEX_RP_STATE"),
        "listen": env.get("AKS_FLEX_RP_LISTEN"),
        "publicUrl": env.get("AKS_FLEX_RP_URL"),
        "database": env.get("AKS_FLEX_RP_DATABASE"),
        **flags,
    }
    try:
        return ServiceSettings.model_validate({**document, **{key: value for key, value in values.items() if value}})
    except ValidationError as error:
        raise _invalid(error, named or Path(DEFAULT_CONFIG_FILE)) from None


def _read(file: Path, *, needed: bool) -> dict[str, object]:
    try:
        document = yaml.safe_load(file.read_text())
    except FileNotFoundError:
        if needed:
            raise ConfigError(
                "service-config-missing", f"The configuration file {file} does not exist.", "Check `--config`."
            ) from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("service-config-invalid", f"Cannot read {file}: {error}.", "Check the file.") from None
    except yaml.YAMLError as error:
        raise ConfigError(
            "service-config-invalid", f"{file} is not valid YAML: {error}", "Correct the file."
        ) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError("service-config-invalid", f"{file} is not a YAML mapping of settings.", "Correct the file.")
    return document


def _invalid(error: ValidationError, file: Path) -> ConfigError:
    lines = []
    for each in error.errors(include_url=False, include_input=False):
        path = ".".join(str(step) for step in each["loc"])
        lines.append(f"  {path or 'configuration'}: {each['msg'].removeprefix('Input ').rstrip('.')}.")
    message = f"The service configuration ({file}, environment, flags) is invalid:\n" + "\n".join(lines)
    return ConfigError("service-config-invalid", message, "Correct the listed settings.")
