"""Start the lab's Entra ID and ARM front, and serve until a signal ends them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from aks_flex_node.lab import network
from aks_flex_node.lab.arm.app import Front
from aks_flex_node.lab.arm.authorization import Definitions
from aks_flex_node.lab.arm.consistency import Consistency, SettlingAssignments, Throttling
from aks_flex_node.lab.arm.deployments.room import Deployments
from aks_flex_node.lab.arm.forwarding import Provider
from aks_flex_node.lab.arm.hybrid import HybridCompute
from aks_flex_node.lab.arm.networks import Networks
from aks_flex_node.lab.arm.resources import Resources
from aks_flex_node.lab.entra.app import Entra
from aks_flex_node.lab.entra.directory import Directory
from aks_flex_node.lab.entra.serving import address, serve
from aks_flex_node.lab.entra.signing import SigningKeys
from aks_flex_node.lab.entra.tokens import Mint

if TYPE_CHECKING:
    from collections.abc import Sequence

METHODS = ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"]


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="azure", description="Answer as Entra ID and as Azure Resource Manager.")
    parser.add_argument("--listen", type=address, required=True, metavar="ADDR:PORT", help="where to speak TLS")
    parser.add_argument("--cert", type=Path, required=True, help="the certificate and its chain, PEM")
    parser.add_argument("--key", type=Path, required=True, help="the certificate's key, PEM")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="principals, clusters, roles, keys")
    parser.add_argument("--provider", required=True, metavar="URL", help="the resource provider behind the front")
    parser.add_argument("--provider-ca", type=Path, metavar="FILE", help="who vouches for the provider, PEM")
    parser.add_argument("--login", default=network.LOGIN_URL, metavar="URL", help="what clients call Entra ID")
    parser.add_argument("--management", default=network.MANAGEMENT_URL, metavar="URL", help="what clients call ARM")
    return parser.parse_args(argv)


def application(options: argparse.Namespace) -> Starlette:
    keys = SigningKeys(options.state)
    keys.ensure()
    directory = Directory(options.state)
    mint = Mint(directory, keys, options.login.rstrip("/"))
    management = options.management.rstrip("/")
    provider = Provider(options.provider, options.provider_ca, management)
    hybrid = HybridCompute(options.state, mint)
    networks = Networks(options.state, management)
    resources = Resources(options.state)
    deployments = Deployments(options.state, resources, directory.tenant)
    rooms = (Definitions(), hybrid, networks, deployments)
    assignments = SettlingAssignments(options.state, directory)
    front = Front(mint, resources, assignments, provider, management, rooms)
    return Starlette(
        routes=[
            *Entra(mint).routes(),
            *hybrid.routes(),
            *networks.routes(),
            Route("/{path:path}", front.answer, methods=METHODS),
        ],
        middleware=[Middleware(Throttling, consistency=Consistency(options.state))],
    )


def main() -> None:
    options = arguments(sys.argv[1:])
    serve(application(options), options.listen, options.cert, options.key)


if __name__ == "__main__":
    main()
