"""Requests about the roll-outs of a pool as AAZ operations. Responses are returned unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azext_aks_flex_node.operations import ListNodes, NodeOperation
from azext_aks_flex_node.pool_operations import POOLS

if TYPE_CHECKING:
    from azext_aks_flex_node.client import FlexNodeContext

    Document = dict[str, Any]


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


class DeleteRollout(GetRollout):
    """Deletes a roll-out that has ended. Returns whether there was one."""

    METHOD = "DELETE"

    def __call__(self) -> bool:
        answer = self.client.send_request(request=self.make_request(), stream=False).http_response
        if answer.status_code not in {200, 204}:  # neither has a body
            self.on_error(answer)
        return bool(answer.status_code == 200)


class PutRollout(GetRollout):
    """Creates and starts a roll-out."""

    METHOD = "PUT"

    def __init__(self, ctx: FlexNodeContext, body: Document) -> None:
        super().__init__(ctx)
        self._body = body

    @property
    def header_parameters(self) -> dict[str, str]:
        return {**super().header_parameters, "Content-Type": "application/json"}

    @property
    def content(self) -> Document:
        return self._body


class ActOnRollout(PutRollout):
    """Sends an action, for example `pause`."""

    METHOD = "POST"

    def __init__(self, ctx: FlexNodeContext, action: str, body: Document | None = None) -> None:
        super().__init__(ctx, body or {})
        self._action = action

    @property
    def url(self) -> str:
        return f"{super().url}/{self._action}"
