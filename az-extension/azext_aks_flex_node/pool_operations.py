"""Requests about pools as AAZ operations, one class each. Responses are returned unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azext_aks_flex_node.operations import (
    ActionOperation,
    BodyOperation,
    DeleteOperation,
    ListNodes,
    NodeOperation,
    PutOperation,
)

if TYPE_CHECKING:
    from azext_aks_flex_node.client import FlexNodeContext

    Document = dict[str, Any]

POOLS = (
    "/subscriptions/{subscriptionId}/resourceGroups/{resourceGroupName}/providers/Microsoft.ContainerService"
    "/managedClusters/{clusterName}/flexNodePools"
)


class ListPools(ListNodes):
    """Reads one page of pools: the first, or the next one of the context."""

    def __init__(self, ctx: FlexNodeContext) -> None:
        super().__init__(ctx, "")

    @property
    def url(self) -> str:
        return str(self.client.format_url(POOLS, **self.url_parameters))


class ListRevisions(ListPools):
    """Reads one page of the revisions of a pool."""

    @property
    def url(self) -> str:
        name = self.serialize_url_param("poolName", self.ctx.args.name)["poolName"]
        return f"{super().url}/{name}/revisions"


class GetPool(NodeOperation):
    """Reads a pool."""

    @property
    def url(self) -> str:
        pools = self.client.format_url(POOLS, **self.url_parameters)
        return f"{pools}/{self.serialize_url_param('poolName', self.ctx.args.name)['poolName']}"


class PutPool(PutOperation, GetPool):
    """Replaces the pool with this etag. Without an etag, creates a new pool."""


class DeletePool(DeleteOperation, GetPool):
    """Deletes a pool. Returns whether there was one."""


class ActOnPool(ActionOperation, GetPool):
    """Sends an action, for example `apply`."""


class EnrolmentOperation(BodyOperation, GetPool):
    """A request about an enrolment of a pool, or about its machines."""

    def __init__(self, ctx: FlexNodeContext, *below: str, body: Document | None = None, method: str = "POST") -> None:
        super().__init__(ctx, body or {})
        self._below, self._method = below, method

    @property
    def method(self) -> str:
        return self._method

    @property
    def url(self) -> str:
        parts = [self.serialize_url_param("part", each)["part"] for each in self._below]
        return "/".join((super().url, "enrolments", *parts))


class ListEnrolments(ListPools):
    """Reads one page of the enrolments of a pool."""

    @property
    def url(self) -> str:
        name = self.serialize_url_param("poolName", self.ctx.args.name)["poolName"]
        return f"{super().url}/{name}/enrolments"
