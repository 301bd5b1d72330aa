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

from aks_flex_node.errors import ConfigError
from aks_flex_rp.auth.auth_settings import AuthSettings, LimitSettings, LowercaseEntraId, SettingsModel
from aks_flex_rp.notify.notification_settings import NotificationSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


class EntraSignInSettings(SettingsModel):
    """An application of the tenant, whose redirect URI (web) is <publicUrl>/ui/sign-in/entra/done."""

    tenant_id: LowercaseEntraId = Field(description="The tenant whose people sign in.")
    client_id: LowercaseEntraId = Field(description="The application that they sign in to.")
    client_secret_file: Path | None = Field(default=None, description="A file, mode 0600, with its secret.")
    client_certificate_file: Path | None = Field(
        default=None, description="A file, mode 0600, with its certificate and key (PEM), in place of a secret."
    )

    @model_validator(mode="after")
    def _one(self) -> EntraSignInSettings:
        if (self.client_secret_file is None) == (self.client_certificate_file is None):
            raise PydanticCustomError("one", "needs either clientSecretFile or clientCertificateFile")
        return self


class DashboardSettings(SettingsModel):
    enabled: bool = Field(default=True, description="Whether there are pages at all.")
    entra: EntraSignInSettings | None = Field(
        default=None, description="Sign in with Entra ID; with the local admin key alone when left out."
    )
    admin_key: bool = Field(default=True, description="Whether people may sign in with the local admin key.")
    session_hours: float = Field(default=8, gt=0, le=24, description="After how long people sign in again.")
    idle_minutes: float = Field(default=60, ge=5, le=1440, description="The same, when they do nothing.")


DEFAULT_CONFIG_FILE = Path("/etc/aks-flex-rp/config.yaml")
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
        raise PydanticCustomError(
            "origin", "must be an address like https://flex.example.com:8443, with nothing after it"
        )
    return text.rstrip("/")


class TlsSettings(SettingsModel):
    certificate_file: Path | None = Field(
        default=None, description="Certificate (PEM) with its chain; an own authority is made when left out."
    )
    key_file: Path | None = Field(default=None, description="Its key.")
    names: tuple[str, ...] = Field(
        default=(), description="Further names and addresses for the certificate of the own authority."
    )

    @model_validator(mode="after")
    def _both(self) -> TlsSettings:
        if (self.certificate_file is None) != (self.key_file is None):
            raise PydanticCustomError("pair", "needs both certificateFile and keyFile, or neither")
        return self


class BlobSettings(SettingsModel):
    connection_string_file: Path | None = Field(
        default=None, description="A file, mode 0600, with the storage account's connection string."
    )
    account_url: str | None = Field(
        default=None, description="The account, reached with the service's own Azure identity, in place of a string."
    )
    container: str = Field(default="flexnode-configs", description="The container that bundles are put in.")


class DeliverySettings(SettingsModel):
    method: Literal["builtIn", "azureBlob"] = Field(
        default="builtIn", description="Where machines fetch their bundle."
    )
    azure_blob: BlobSettings | None = Field(default=None, description="The storage account, for azureBlob.")

    @model_validator(mode="after")
    def _account(self) -> DeliverySettings:
        if self.method == "azureBlob" and self.azure_blob is None:
            raise PydanticCustomError("blob", "needs azureBlob with connectionStringFile or accountUrl")
        return self


class AzureSettings(SettingsModel):
    resource_manager: Annotated[str, AfterValidator(_origin)] = Field(
        default="https://management.azure.com", description="Azure's resource manager; nodes are told of another one."
    )
    authority: Annotated[str, AfterValidator(_origin)] = Field(
        default="https://login.microsoftonline.com",
        description="Where the service signs in; nodes are told of another one.",
    )
    ca_file: Path | None = Field(default=None, description="CA certificates (PEM) of a private cloud.")
    tenant_id: str | None = Field(default=None, description="Tenant of the service's own identity.")
    client_id: str | None = Field(
        default=None, description="Its client id; a managed identity's, when without secret."
    )
    client_secret_file: Path | None = Field(default=None, description="A file, mode 0600, with its secret.")


class TokenSettings(SettingsModel):
    hours: float = Field(default=24, gt=0, le=24 * 6, description="How long a bootstrap token and its URL live.")
    grace_seconds: float = Field(
        default=60, ge=1, le=3600, description="How long a used token lives while its certificate is not issued."
    )


class NodeLifecycleSettings(SettingsModel):
    gone_after_minutes: float = Field(
        default=60,
        gt=0,
        description="How long the Node of a deleted resource may be not Ready before the service deletes it.",
    )
    poll_seconds: float = Field(
        default=30, ge=1, le=3600, description="How often an agent that stays asks, where its polls are not held."
    )


class LogSettings(SettingsModel):
    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="What is logged.")
    format: Literal["json", "text"] = Field(default="json", description="One JSON object a line, or plain text.")


class ServiceSettings(SettingsModel):
    listen: Annotated[str, AfterValidator(_address)] = Field(
        default=f"0.0.0.0:{DEFAULT_PORT}", description="Where it listens."
    )
    public_url: Annotated[str, AfterValidator(_origin)] | None = Field(
        default=None, description="How machines reach it; this host's name and the port when left out."
    )
    agents_url: Annotated[str, AfterValidator(_origin)] | None = Field(
        default=None, description="Where nodes follow it, when not at publicUrl: a gateway, or ARM, in front of it."
    )
    state_dir: Path = Field(
        default=DEFAULT_STATE_DIR, description="Keys, certificates, and the database of one machine."
    )
    database: str | None = Field(
        default=None, description="`postgresql://…` for many replicas; a SQLite file in stateDir when left out."
    )
    database_file: Path | None = Field(
        default=None, description="A file, mode 0600, with the `postgresql://…` address, which may hold a password."
    )
    keys_file: Path | None = Field(default=None, description="Keys that encrypt secrets; in stateDir when left out.")
    tls: TlsSettings = Field(default_factory=TlsSettings, description="TLS.")
    auth: AuthSettings = Field(default_factory=AuthSettings, description="Who may do what.")
    limits: LimitSettings = Field(default_factory=LimitSettings, description="How much one caller may ask for.")
    delivery: DeliverySettings = Field(default_factory=DeliverySettings, description="Delivery of bundles.")
    azure: AzureSettings = Field(default_factory=AzureSettings, description="The service's own way to Azure.")
    tokens: TokenSettings = Field(default_factory=TokenSettings, description="Bootstrap tokens.")
    nodes: NodeLifecycleSettings = Field(
        default_factory=NodeLifecycleSettings, description="Nodes in their clusters."
    )
    notifications: NotificationSettings = Field(
        default_factory=NotificationSettings, description="Who is told of what happens to nodes."
    )
    audit_days: Annotated[int, Field(ge=1, le=36500)] = Field(
        default=365, description="How long lines of the audit are kept."
    )
    keep_alive_seconds: Annotated[int, Field(ge=1, le=3600)] = Field(
        default=75,
        description="How long an idle connection is kept; above a node's poll interval, no poll needs a new one.",
    )
    dashboard: DashboardSettings = Field(default_factory=DashboardSettings, description="The pages for people.")
    log: LogSettings = Field(default_factory=LogSettings, description="Logging.")

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
        """All names that the own certificate is for."""
        host = urlsplit(self.origin).hostname or "localhost"
        own = (host, socket.gethostname(), "localhost", "127.0.0.1", *self.tls.names)
        listening = () if self.host in {"0.0.0.0", "::"} else (self.host,)  # noqa: S104 - compared, not bound
        return tuple(dict.fromkeys((*own, *listening)))


def load(file: Path | None, env: Mapping[str, str], **flags: object) -> ServiceSettings:
    """Flags over the environment over the file. A file that is named must be there; the usual place may be empty."""
    named = file or (Path(env["AKS_FLEX_RP_CONFIG"]) if env.get("AKS_FLEX_RP_CONFIG") else None)
    document = _read(named or DEFAULT_CONFIG_FILE, needed=named is not None)
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
        raise _invalid(error, named or DEFAULT_CONFIG_FILE) from None


def _read(file: Path, *, needed: bool) -> dict[str, object]:
    try:
        document = yaml.safe_load(file.read_text())
    except FileNotFoundError:
        if needed:
            raise ConfigError("service-config-missing", f"There is no {file}.", "Check --config.") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("service-config-invalid", f"{file} cannot be read: {error}.", "Check the file.") from None
    except yaml.YAMLError as error:
        raise ConfigError("service-config-invalid", f"{file} is not YAML: {error}", "Correct the file.") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError("service-config-invalid", f"{file} holds no settings by name.", "Correct the file.")
    return document


def _invalid(error: ValidationError, file: Path) -> ConfigError:
    lines = []
    for each in error.errors(include_url=False, include_input=False):
        path = ".".join(str(step) for step in each["loc"])
        lines.append(f"  {path or 'configuration'}: {each['msg'].removeprefix('Input ').rstrip('.')}.")
    message = f"The configuration of the service ({file}, environment, flags) is wrong:\n" + "\n".join(lines)
    return ConfigError(
        "service-config-invalid", message, "Correct what is listed; docs/reference/provider.md has all settings."
    )
