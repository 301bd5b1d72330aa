"""`azure-token`: the child process that signs in to Entra ID for the daemon.
Reads a configuration on standard input and prints a token or the error as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.identity import azure_sign_in
from aks_flex_node.agent.provider.provider_client import provider_scope
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Mapping


def print_azure_token() -> None:
    """Implements `aks-flex-node azure-token`. Prints the token to a pipe and refuses to print it to a terminal."""
    if sys.stdout.isatty():
        print("This command is internal. It prints a token and does not run on a terminal.", file=sys.stderr)
        sys.exit(2)
    try:
        from aks_flex_node.agent.config.loader import load_text

        config = load_text(sys.stdin.read(), "the node's configuration", {}, {}).config
        token = azure_sign_in.sign_in(config, provider_scope(config))
        document: Mapping[str, Any] = {"token": token.value, "seconds": max(0.0, token.expires - time.time())}
    except FlexError as error:
        about = {"name": error.name, "message": error.message, "hint": error.hint, "retryable": error.retryable}
        document = {"error": about}
    print(json.dumps(document))
