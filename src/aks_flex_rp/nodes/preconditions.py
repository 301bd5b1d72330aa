"""Conditions of a request on the etag of a node or a pool (RFC 9110)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.arm import errors

if TYPE_CHECKING:
    from aks_flex_rp.store.model import Node
    from aks_flex_rp.store.pool_model import Pool


@dataclass(frozen=True)
class Preconditions:
    """Conditions that a write request requires of the resource."""

    if_match: str = ""
    if_none_match: str = ""
    allow_downgrade: bool = False  # older versions than the current ones are allowed
    override_rollout: bool = False  # a person takes the node out of the roll-out of its pool

    def check(self, found: Node | Pool | None, name: str, kind: str = "flexNodeConfig") -> None:
        if found is not None and if_none_match_matches(self.if_none_match, found.etag):
            raise errors.precondition_failed(name, kind)
        if self.if_match and (found is None or (self.if_match != "*" and found.etag not in _listed(self.if_match))):
            raise errors.precondition_failed(name, kind)


def if_none_match_matches(header: str, etag: str) -> bool:
    """Returns whether If-None-Match contains the etag. Weak validators are compared like strong ones."""
    return header.strip() == "*" or etag in [each.removeprefix("W/") for each in _listed(header)]


def _listed(header: str) -> list[str]:
    return [each.strip() for each in header.split(",")]
