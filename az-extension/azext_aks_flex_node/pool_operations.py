"""Requests about pools as AAZ operations, one class each. Responses are returned unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azext_aks_flex_node.operations import ListNodes, NodeOperation

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


class PutPool(GetPool):
    """Replaces the pool with this etag. Without an etag, creates a new pool."""

    METHOD = "PUT"

    def __init__(self, ctx: FlexNodeContext, properties: Document, *, etag: str = "") -> None:
        super().__init__(ctx)
        self._properties = properties
        self._precondition = {"If-Match": etag} if etag else {"If-None-Match": "*"}

    @property
    def header_parameters(self) -> dict[str, str]:
        return {**super().header_parameters, "Content-Type": "application/json", **self._precondition}

    @property
    def content(self) -> Document:
        return {"properties": self._properties}


class DeletePool(GetPool):
    """Deletes a pool. Returns whether there was one."""

    METHOD = "DELETE"

    def __call__(self) -> bool:
        answer = self.client.send_request(request=self.make_request(), stream=False).http_response
        if answer.status_code not in {200, 204}:  # neither has a body
            self.on_error(answer)
        return bool(answer.status_code == 200)


class ApplyPool(GetPool):
    """Brings nodes of a pool to a revision."""

    METHOD = "POST"

    def __init__(self, ctx: FlexNodeContext, body: Document) -> None:
        super().__init__(ctx)
        self._body = body

    @property
    def header_parameters(self) -> dict[str, str]:
        return {**super().header_parameters, "Content-Type": "application/json"}

    @property
    def content(self) -> Document:
        return self._body

    @property
    def url(self) -> str:
        return f"{super().url}/apply"


class AllowRevision(ApplyPool):
    """Lifts the bar of a revision. Returns the pool."""

    @property
    def url(self) -> str:
        return f"{GetPool.url.fget(self)}/allowRevision"  # type: ignore[attr-defined]


class EnrolmentOperation(ApplyPool):
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
        return "/".join((GetPool.url.fget(self), "enrolments", *parts))  # type: ignore[attr-defined]


class ListEnrolments(ListPools):
    """Reads one page of the enrolments of a pool."""

    @property
    def url(self) -> str:
        name = self.serialize_url_param("poolName", self.ctx.args.name)["poolName"]
        return f"{super().url}/{name}/enrolments"
