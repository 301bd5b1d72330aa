"""Requests about the roll-outs of a pool as AAZ operations. Responses are returned unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azext_aks_flex_node.operations import ActionOperation, BodyOperation, DeleteOperation, ListNodes, NodeOperation
from azext_aks_flex_node.pool_operations import POOLS

if TYPE_CHECKING:
    from azext_aks_flex_node.client import FlexNodeContext


def _rollouts_url(operation: NodeOperation) -> str:
    pools = operation.client.format_url(POOLS, **operation.url_parameters)
    return f"{pools}/{operation.serialize_url_param('poolName', operation.ctx.args.pool_name)['poolName']}/rollouts"


class ListRollouts(ListNodes):
    """Reads one page of the roll-outs of a pool."""

    def __init__(self, ctx: FlexNodeContext) -> None:
        super().__init__(ctx, "")

    @property
    def url(self) -> str:
        return _rollouts_url(self)


class GetRollout(NodeOperation):
    """Reads a roll-out."""

    @property
    def url(self) -> str:
        name = self.serialize_url_param("rolloutName", self.ctx.args.name)["rolloutName"]
        return f"{_rollouts_url(self)}/{name}"


class DeleteRollout(DeleteOperation, GetRollout):
    """Deletes a roll-out that has ended. Returns whether there was one."""


class PutRollout(BodyOperation, GetRollout):
    """Creates and starts a roll-out."""

    METHOD = "PUT"


class ActOnRollout(ActionOperation, GetRollout):
    """Sends an action, for example `pause`."""
