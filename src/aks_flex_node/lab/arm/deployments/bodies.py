"""What is asked for, from JSON as ARM takes it: with comments, with strings of several lines, and as az sends it."""

from __future__ import annotations

import json
import re
from typing import Any

from aks_flex_node.lab.arm.answers import Refusal

# az puts a template's own text into the request, behind a name without quotes.
TOKEN = re.compile(rb'("(?:[^"\\]|\\.)*")|(//[^\n]*|/\*.*?\*/)|(, template:)', re.DOTALL)


def properties_of(content: bytes) -> dict[str, Any]:
    """Of a deployment that is wanted."""
    try:
        properties: dict[str, Any] = json.loads(TOKEN.sub(_plain, content), strict=False)["properties"]
        mode = str(properties.get("mode") or "Incremental")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refusal(400, "InvalidRequestContent", "The request content was invalid.") from None
    if mode.lower() != "incremental":
        words = "The lab deploys incrementally: it does not remove what is left out."
        raise Refusal(400, "InvalidDeploymentMode", words)
    if "template" not in properties:
        raise Refusal(400, "InvalidTemplate", "The lab takes a template in the request alone, and no link to one.")
    return properties


def _plain(found: re.Match[bytes]) -> bytes:
    if found[2]:
        return b" "
    return b', "template":' if found[3] else found[1]
