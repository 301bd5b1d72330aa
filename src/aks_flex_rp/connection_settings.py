"""Settings of the connections to the service."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from aks_flex_rp.auth.auth_settings import SettingsModel


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
