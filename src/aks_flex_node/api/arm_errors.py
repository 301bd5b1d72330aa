"""ARM error bodies, as the resource provider sends and the agent parses them."""

from __future__ import annotations

import json
from typing import Any

ON_ANOTHER_MACHINE = "NodeOnAnotherMachine"  # 409: the node lives on another machine
REPLACED = "NodeReplaced"  # 409: the node was moved to another machine
NODE_NOT_KNOWN = "NodeNotKnown"  # 404: the provider has no record of the node, not even of its deletion
CONFIG_URL_TAKEN = "ConfigUrlTaken"  # 409: the config URL is bound to another key
NODE_KEY_REVOKED = "NodeKeyRevoked"  # 403, or 409 at a fetch: the key may no longer act as its node
NODE_KEY_NOT_KNOWN = "NodeKeyNotKnown"  # 401: the provider has not bound this key to the node
NODE_KEY_TIME = "NodeKeyTimeInvalid"  # 401, or 400 at a fetch: the clock of the machine is wrong
MAX_MESSAGE_LENGTH = 500  # limit for texts from the remote side


def parse_arm_error(body: bytes) -> tuple[str, str]:
    """Returns code and message of an ARM error, or empty strings if the body is not an ARM error."""
    error = parse_object(body).get("error")
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        return "", ""
    return error["code"][:MAX_MESSAGE_LENGTH], str(error.get("message") or "no message")[:MAX_MESSAGE_LENGTH]


def parse_object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
