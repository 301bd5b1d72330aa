"""`token kubernetes`: the ExecCredential plugin that the kubelet runs. Imports little, to start fast."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.identity import token_cache
from aks_flex_node.errors import FlexError, MachineError

if TYPE_CHECKING:
    from collections.abc import Sequence

IDENTITY_FILE = f"/var/lib/kubelet/{token_cache.IDENTITY_FILE}"


def main(arguments: Sequence[str]) -> bool:
    """Handles the kubelet's command line; returns False for any other."""
    if list(arguments[:3]) != ["token", "kubernetes", "--identity"] or len(arguments) != 4:
        return False
    try:
        print_credential(Path(arguments[3]))
    except FlexError as error:
        print(f"{error.name}: {error.message} {error.hint}".strip(), file=sys.stderr)  # for the kubelet's journal
        sys.exit(error.exit_code)
    return True


def print_credential(identity: Path) -> None:
    try:
        token = token_cache.get_cached_token(identity, sign_in)
    except FileNotFoundError:
        raise MachineError(
            "node-identity-missing",
            f"{identity} does not exist: this node does not authenticate with an Azure identity.",
            "Set `node.kubelet.auth` to exec or certificate, and join again.",
        ) from None
    except PermissionError:
        raise MachineError(
            "root-required", "This command must run as root.", "Run the same command with `sudo`."
        ) from None
    if sys.stdout.isatty():
        left = (token.expires_at - time.time()) / 60
        print(f"The token for the API server is valid for {left:.0f} minutes. It is not printed on a terminal.")
    else:
        print(json.dumps(token.exec_credential()))


def sign_in(text: str) -> tuple[str, float]:
    from aks_flex_node.agent.config.loader import load_text
    from aks_flex_node.agent.identity.azure_sign_in import sign_in as azure_sign_in
    from aks_flex_node.agent.identity.cloud_endpoints import AKS_SERVER_APP_ID

    token = azure_sign_in(load_text(text, "the node's identity").config, f"{AKS_SERVER_APP_ID}/.default")
    return token.value, token.expires
