"""The base class of request bodies, and the properties that a request may repeat and cannot set."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


def wire_name(attribute: str) -> str:
    first, *rest = attribute.split("_")
    return first + "".join(word.capitalize() for word in rest)


class WireModel(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=wire_name,
        validate_by_alias=True,
        validate_by_name=False,
        serialize_by_alias=True,
        hide_input_in_errors=True,
    )


READ_ONLY = (
    *("configVersion", "configUrl", "configUrlExpires", "config", "status", "lastSeen"),
    *("poolRevision", "effective", "origins", "nextConfig"),
)
POOL_READ_ONLY = (
    *("revision", "nodeCount", "pendingNodeCount"),
    *("stableRevision", "barredRevisions", "activeRollout"),
)
ENVELOPE = ("id", "name", "type", "systemData", "etag")
