"""Give the machines of a site their managed identities: run inside the site's network until a signal ends it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette

from aks_flex_node.lab.entra.directory import Directory
from aks_flex_node.lab.entra.given import Given
from aks_flex_node.lab.entra.machines import Machines
from aks_flex_node.lab.entra.serving import address, serve
from aks_flex_node.lab.entra.signing import SigningKeys
from aks_flex_node.lab.entra.tokens import Mint

if TYPE_CHECKING:
    from collections.abc import Sequence


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="metadata", description="Answer as the metadata service of VMs.")
    parser.add_argument(
        "--listen", type=address, required=True, metavar="ADDR:PORT", help="169.254.169.254:80 on a VM"
    )
    parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="the lab's directory and its keys")
    parser.add_argument("--login", required=True, metavar="URL", help="where the lab's Entra ID answers")
    return parser.parse_args(argv)


def main() -> None:
    options = arguments(sys.argv[1:])
    mint = Mint(Directory(options.state), SigningKeys(options.state), options.login)
    serve(Starlette(routes=Machines(mint, Given(options.state)).routes()), options.listen)


if __name__ == "__main__":
    main()
