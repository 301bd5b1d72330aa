"""The child that signs in: reads a configuration on standard input, and answers with a token or with the cause."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.following.endpoints import scope
from aks_flex_node.agent.identities import signing
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Mapping


def answer() -> None:
    """What `aks-flex-node azure-token` does. The token goes to a pipe, and nowhere else."""
    if sys.stdout.isatty():
        print("This is for the agent itself: it prints a token, which belongs into no terminal.", file=sys.stderr)
        sys.exit(2)
    try:
        said: Mapping[str, Any] = _signed_in(sys.stdin.read())
    except FlexError as error:
        about = {"name": error.name, "message": error.message, "hint": error.hint, "again": error.again}
        said = {"error": about}
    print(json.dumps(said))


def _signed_in(bundle: str) -> dict[str, Any]:
    from aks_flex_node.agent.config.loader import load_text  # noqa: PLC0415

    config = load_text(bundle, "the node's configuration", {}, {}).config
    token = signing.sign_in(config, scope(config))
    return {"token": token.value, "seconds": max(0.0, token.expires - time.time())}
