"""The pages' part of the service's configuration."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads it

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from aks_flex_node.rp.auth.settings import EntraId, Settings


class EntraSignIn(Settings):
    """An application of the tenant, whose redirect URI (web) is <publicUrl>/ui/sign-in/entra/done."""

    tenant_id: EntraId = Field(description="The tenant whose people sign in.")
    client_id: EntraId = Field(description="The application that they sign in to.")
    client_secret_file: Path | None = Field(default=None, description="A file, mode 0600, with its secret.")
    client_certificate_file: Path | None = Field(
        default=None, description="A file, mode 0600, with its certificate and key (PEM), in place of a secret."
    )

    @model_validator(mode="after")
    def _one(self) -> EntraSignIn:
        if (self.client_secret_file is None) == (self.client_certificate_file is None):
            raise PydanticCustomError("one", "needs either clientSecretFile or clientCertificateFile")
        return self


class DashboardSettings(Settings):
    enabled: bool = Field(default=True, description="Whether there are pages at all.")
    entra: EntraSignIn | None = Field(
        default=None, description="Sign in with Entra ID; with the local admin key alone when left out."
    )
    admin_key: bool = Field(default=True, description="Whether people may sign in with the local admin key.")
    session_hours: float = Field(default=8, gt=0, le=24, description="After how long people sign in again.")
    idle_minutes: float = Field(default=60, ge=5, le=1440, description="The same, when they do nothing.")
