"""Settings for authentication, role grants and rate limits, and the base class of all settings."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from aks_flex_node.api.audiences import audience_forms, is_azure_audience
from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.text_enum import TextEnum

ENTRA_AUTHORITY = "https://login.microsoftonline.com"
ARM_AUDIENCES = (
    "https://management.azure.com",
    "https://management.azure.com/",
    "https://management.core.windows.net/",
)

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_GROUP = re.compile(rf"/subscriptions/{_ID.pattern}(/resourcegroups/[-\w.()]{{1,90}})?", re.IGNORECASE)


class Role(TextEnum):
    OWNER = "owner"
    CONTRIBUTOR = "contributor"
    READER = "reader"


def _entra_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise PydanticCustomError(
            "entra_id", "must be an ID such as 00000000-0000-0000-0000-000000000000, as shown in the Azure portal"
        )
    return text.lower()


def _scope(text: str) -> str:
    trimmed = text.rstrip("/")
    if text != "/" and not _GROUP.fullmatch(trimmed) and not parse_cluster_id(trimmed):
        raise PydanticCustomError(
            "scope",
            "must be `/` or the ID of a subscription, resource group or cluster, "
            "such as /subscriptions/<id>/resourceGroups/<name>",
        )
    return trimmed or "/"


def _https(text: str) -> str:
    if not text.lower().startswith("https://"):
        raise PydanticCustomError("https", "must be an https:// URL, because trusted keys are fetched from it")
    return text


Entry = TypeVar("Entry")
LowercaseEntraId = Annotated[str, AfterValidator(_entra_id)]


class SettingsModel(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
    )


def unique(name: str, hint: str = "") -> AfterValidator:
    """Returns a validator of a list whose entries have different values of a field."""

    def check(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        if len({getattr(each, name) for each in entries}) < len(entries):
            raise PydanticCustomError("twice", "contains the same {name} twice{hint}", {"name": name, "hint": hint})
        return entries

    return AfterValidator(check)


class TenantSettings(SettingsModel):
    tenant_id: LowercaseEntraId = Field(description="Entra tenant whose tokens are accepted.")
    metadata_url: Annotated[str, AfterValidator(_https)] | None = Field(
        default=None, description="OpenID metadata of the tenant. Default: Entra ID's metadata of the tenant."
    )
    audiences: tuple[str, ...] = Field(
        default=(),
        description="Accepted audiences of tokens: the application ID URI or the client ID of the service's own "
        "application in Entra ID, such as `api://CLIENT-ID`. Required, except behind Azure Resource Manager.",
    )
    ca_file: str | None = Field(
        default=None,
        description="CA certificates (PEM) for a private Entra ID endpoint. Default: the system's CA certificates.",
    )

    @property
    def metadata(self) -> str:
        return self.metadata_url or f"{ENTRA_AUTHORITY}/{self.tenant_id}/v2.0/.well-known/openid-configuration"

    @property
    def sign_in(self) -> str:
        """Returns the URL where a caller without a token can sign in."""
        return self.metadata.partition("/v2.0/.well-known/")[0].partition("/.well-known/")[0]


class RoleGrant(SettingsModel):
    role: Role = Field(description="`owner`, `contributor` or `reader`.")
    scope: Annotated[str, AfterValidator(_scope)] = Field(
        description="Scope of the grant: `/`, or the ID of a subscription, resource group or cluster."
    )
    principal: LowercaseEntraId = Field(
        description="Object ID or application ID of an identity, or the ID of a group."
    )
    tenant_id: LowercaseEntraId | None = Field(
        default=None,
        description="Tenant of the principal. Required if the service accepts several tenants. Default: the only.",
    )


class AuthSettings(SettingsModel):
    tenants: tuple[TenantSettings, ...] = Field(
        default=(), description="Tenants whose tokens are accepted. If empty, only the local admin key is accepted."
    )
    behind_arm: bool = Field(
        default=False,
        description="The service stands behind Azure Resource Manager, which forwards tokens for Azure. Otherwise "
        "they are refused, because the service could use them in Azure.",
    )
    roles: tuple[RoleGrant, ...] = Field(default=(), description="Role grants, in addition to the local admin key.")
    azure_role_assignments: bool = Field(
        default=False,
        description="Also use Azure role assignments on a cluster. The service's identity must be able to read them.",
    )

    @model_validator(mode="after")
    def _dedicated(self) -> AuthSettings:
        for number, tenant in enumerate(self.tenants):
            check_audiences(self, number, tenant)
        return self

    @property
    def accepted_tenants(self) -> tuple[TenantSettings, ...]:
        """Returns the tenants with their audiences as tokens name them, the service's own before those of Azure."""
        accepted: list[TenantSettings] = []
        for tenant in self.tenants:
            audiences = sorted(tenant.audiences or ARM_AUDIENCES, key=is_azure_audience)
            forms = tuple(form for audience in audiences for form in audience_forms(audience))
            accepted.append(tenant.model_copy(update={"audiences": forms}))
        return tuple(accepted)


def check_audiences(auth: AuthSettings, number: int, tenant: TenantSettings, resource_manager: str = "") -> None:
    """Refuses audiences of Azure unless the service stands behind Azure Resource Manager."""
    azure = next((each for each in tenant.audiences if is_azure_audience(each, resource_manager)), None)
    if auth.behind_arm or (tenant.audiences and azure is None):
        return
    found = f"{azure} belongs to Azure" if azure else "no audience is set"
    raise PydanticCustomError(
        "audience",
        "auth.tenants[{number}].audiences: {found}, but the service must not receive tokens that are valid in Azure. "
        "Register an application for the service in Entra ID and set its ID, such as api://CLIENT-ID. If the service "
        "stands behind Azure Resource Manager, set auth.behindArm to true instead",
        {"number": number, "found": found},
    )


class LimitSettings(SettingsModel):
    """Rate limits per caller. The defaults are those of ARM for one identity."""

    reads_per_second: float = Field(default=25, gt=0, description="Sustained rate of reads per caller.")
    read_burst: int = Field(default=250, ge=1, description="Burst of reads per caller.")
    writes_per_second: float = Field(default=10, gt=0, description="Sustained rate of writes per caller.")
    write_burst: int = Field(default=200, ge=1, description="Burst of writes per caller.")


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        raise PydanticCustomError("network", "must be an address or a network such as 10.0.0.0/8") from None


class ConnectionSettings(SettingsModel):
    """Bounds on open connections. Idle ones are closed first; held polls are never closed."""

    total: int = Field(
        default=200_000, ge=16, description="Open connections in all, below the limit of open files in any case."
    )
    per_address: int = Field(
        default=4096, ge=4, description="Open connections of one IPv4 address, or of one /64 network of IPv6."
    )
    unlimited_addresses: tuple[Annotated[str, AfterValidator(_network)], ...] = Field(
        default=("127.0.0.0/8", "::1/128"),
        description="Addresses or networks that carry many clients (reverse proxies, load balancers, NAT), to which "
        "perAddress does not apply. Nothing else is trusted from them.",
    )
