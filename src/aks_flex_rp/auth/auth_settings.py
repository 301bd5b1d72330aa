"""Settings for authentication, role grants and rate limits, and the base class of all settings."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.text_enum import TextEnum

ENTRA_AUTHORITY = "https://login.microsoftonline.com"
AUDIENCES = (
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


class TenantSettings(SettingsModel):
    tenant_id: LowercaseEntraId = Field(description="Entra tenant whose tokens are accepted.")
    metadata_url: Annotated[str, AfterValidator(_https)] | None = Field(
        default=None, description="OpenID metadata of the tenant. Default: Entra ID's metadata of the tenant."
    )
    audiences: tuple[str, ...] = Field(
        default=AUDIENCES,
        min_length=1,
        description="Accepted audiences of tokens. Default: Azure Resource Manager.",
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


class AuthSettings(SettingsModel):
    tenants: tuple[TenantSettings, ...] = Field(
        default=(), description="Tenants whose tokens are accepted. If empty, only the local admin key is accepted."
    )
    roles: tuple[RoleGrant, ...] = Field(default=(), description="Role grants, in addition to the local admin key.")
    azure_role_assignments: bool = Field(
        default=False,
        description="Also use Azure role assignments on a cluster. The service's identity must be able to read them.",
    )


class LimitSettings(SettingsModel):
    """Rate limits per caller. The defaults are those of ARM for one identity."""

    reads_per_second: float = Field(default=25, gt=0, description="Sustained rate of reads per caller.")
    read_burst: int = Field(default=250, ge=1, description="Burst of reads per caller.")
    writes_per_second: float = Field(default=10, gt=0, description="Sustained rate of writes per caller.")
    write_burst: int = Field(default=200, ge=1, description="Burst of writes per caller.")
