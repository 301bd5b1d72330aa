"""Runs the lab's Entra ID and Azure Resource Manager until a signal stops them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from aks_flex_lab import network
from aks_flex_lab.arm.deployments.service import Deployments
from aks_flex_lab.arm.eventual_consistency import ArmFaultMiddleware, DelayedRoleAssignments, EventualConsistency
from aks_flex_lab.arm.flex_pools.service import FlexPools
from aks_flex_lab.arm.hybrid_compute import HybridCompute
from aks_flex_lab.arm.managed_clusters import ManagedClusters
from aks_flex_lab.arm.network_provider import NetworkProvider
from aks_flex_lab.arm.provider_proxy import ProviderProxy
from aks_flex_lab.arm.resource_manager import ResourceManagerFront, RoleDefinitions
from aks_flex_lab.entra.authority import EntraAuthority
from aks_flex_lab.entra.directory import EntraDirectory
from aks_flex_lab.entra.tokens import SigningKey, TokenIssuer
from aks_flex_lab.http_server import serve
from aks_flex_lab.network import parse_address

if TYPE_CHECKING:
    from collections.abc import Sequence

METHODS = ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"]


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="azure", description="Serve Entra ID and Azure Resource Manager.")
    parser.add_argument("--listen", type=parse_address, required=True)
    for name in ("cert", "key", "state", "provider-ca"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--provider", required=True)
    parser.add_argument("--login", default=network.LOGIN_URL)
    parser.add_argument("--management", default=network.MANAGEMENT_URL)
    return parser.parse_args(argv)


def application(options: argparse.Namespace) -> Starlette:
    keys = SigningKey(options.state)
    keys.ensure()
    directory = EntraDirectory(options.state)
    mint = TokenIssuer(directory, keys, options.login.rstrip("/"))
    management = options.management.rstrip("/")
    provider = ProviderProxy(options.provider, options.provider_ca, management)
    hybrid = HybridCompute(options.state, mint)
    networks = NetworkProvider(options.state, management)
    resources = ManagedClusters(options.state)
    deployments = Deployments(resources)
    pools = FlexPools(options.state, resources, management)
    rooms = (RoleDefinitions(), hybrid, networks, deployments, pools)
    assignments = DelayedRoleAssignments(options.state, directory)
    resource_manager = ResourceManagerFront(mint, resources, assignments, provider, management, rooms, pools.profiles)
    return Starlette(
        routes=[
            *EntraAuthority(mint).routes(),
            *hybrid.routes(),
            *networks.routes(),
            Route("/{path:path}", resource_manager.answer, methods=METHODS),
        ],
        lifespan=pools.lifespan,
        middleware=[Middleware(ArmFaultMiddleware, consistency=EventualConsistency(options.state))],
    )


def main() -> None:
    options = arguments(sys.argv[1:])
    serve(application(options), options.listen, options.cert, options.key)


if __name__ == "__main__":
    main()
