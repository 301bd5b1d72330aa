"""Runs the instance metadata service of one site, which gives its machines their managed identities."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette

from aks_flex_lab.entra.directory import EntraDirectory, MachineIdentities
from aks_flex_lab.entra.instance_metadata import InstanceMetadataService
from aks_flex_lab.entra.tokens import SigningKeys, TokenIssuer
from aks_flex_lab.http_server import serve
from aks_flex_lab.network import parse_address

if TYPE_CHECKING:
    from collections.abc import Sequence


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="metadata", description="Serve the instance metadata service of VMs.")
    parser.add_argument(
        "--listen", type=parse_address, required=True, metavar="ADDR:PORT", help="169.254.169.254:80 on a VM"
    )
    parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="the lab's directory and its keys")
    parser.add_argument("--login", required=True, metavar="URL", help="the URL of the lab's Entra ID")
    return parser.parse_args(argv)


def main() -> None:
    options = arguments(sys.argv[1:])
    mint = TokenIssuer(EntraDirectory(options.state), SigningKeys(options.state), options.login)
    serve(Starlette(routes=InstanceMetadataService(mint, MachineIdentities(options.state)).routes()), options.listen)


if __name__ == "__main__":
    main()
