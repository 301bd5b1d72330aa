"""`token kubernetes`: the credential plugin (ExecCredential) that the kubelet runs. Imports as little as possible."""

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
    """Whether these are the words that a kubelet uses; if so, they are answered."""
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
            f"There is no {identity}: this machine is no node that shows the cluster an Azure identity.",
            "It is written by a join with node.kubelet.auth exec or certificate.",
        ) from None
    except PermissionError:
        raise MachineError(
            "root-required", "Only root can be this node.", "Run the same command with `sudo`."
        ) from None
    if sys.stdout.isatty():
        left = (token.expires_at - time.time()) / 60
        print(f"A token for the API server that lasts {left:.0f} more minutes. It is shown to programs alone.")
    else:
        print(json.dumps(token.exec_credential()))


def sign_in(text: str) -> tuple[str, float]:
    from aks_flex_node.agent.config.loader import load_text
    from aks_flex_node.agent.identity.azure_sign_in import sign_in as azure_sign_in
    from aks_flex_node.agent.identity.cloud_endpoints import AKS_SERVER_APP_ID

    token = azure_sign_in(load_text(text, "the node's identity", {}, {}).config, f"{AKS_SERVER_APP_ID}/.default")
    return token.value, token.expires
