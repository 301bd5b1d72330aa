"""Requests to the service as AAZ operations, one class each. Responses are returned unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from azure.cli.core.aaz import AAZHttpOperation

from azext_aks_flex_node.client import CLIENT
from azext_aks_flex_node.vendored.contract import API_VERSION

if TYPE_CHECKING:
    from azext_aks_flex_node.client import FlexNodeContext

    Document = dict[str, Any]

NODES = (
    "/subscriptions/{subscriptionId}/resourceGroups/{resourceGroupName}/providers/Microsoft.ContainerService"
    "/managedClusters/{clusterName}/flexNodeConfig"
)
PAGE = 1000


class NodeOperation(AAZHttpOperation):
    CLIENT_TYPE = CLIENT
    METHOD = "GET"

    def __call__(self) -> Any:
        session = self.client.send_request(request=self.make_request(), stream=False)
        answer = session.http_response
        if answer.status_code == 204:
            return None
        if answer.status_code in {200, 201}:
            return self.deserialize_http_content(session)
        return self.on_error(answer)

    @property
    def url(self) -> str:
        return str(self.client.format_url(NODES, **self.url_parameters))

    @property
    def method(self) -> str:
        return self.METHOD

    @property
    def url_parameters(self) -> dict[str, str]:
        return {
            **self.serialize_url_param("subscriptionId", self.ctx.subscription_id),
            **self.serialize_url_param("resourceGroupName", self.ctx.args.resource_group),
            **self.serialize_url_param("clusterName", self.ctx.args.cluster_name),
        }

    @property
    def query_parameters(self) -> dict[str, str]:
        return dict(self.serialize_query_param("api-version", API_VERSION))

    @property
    def header_parameters(self) -> dict[str, str]:
        return {"Accept": "application/json"}

    @property
    def error_format(self) -> str:
        return "MgmtErrorFormat"


class ListNodes(NodeOperation):
    """Reads one page: the first, or the next one of the context."""

    def __init__(self, ctx: FlexNodeContext, filter_text: str) -> None:
        super().__init__(ctx)
        self._filter = filter_text

    def make_request(self) -> Any:
        """Sends the request only to this service, regardless of the host of the link: it carries a token."""
        if not self.ctx.next_link:
            return super().make_request()
        link = urlsplit(str(self.ctx.next_link))
        return self.client.get(self.client.format_url(f"{link.path}?{link.query}"), headers=self.header_parameters)

    @property
    def query_parameters(self) -> dict[str, str]:
        parameters = {**super().query_parameters, "$top": str(PAGE)}
        return {**parameters, **(self.serialize_query_param("$filter", self._filter) if self._filter else {})}


class GetNode(NodeOperation):
    """Reads a node."""

    @property
    def url(self) -> str:
        return f"{super().url}/{self.serialize_url_param('nodeName', self.ctx.args.name)['nodeName']}"


class BodyOperation(NodeOperation):
    """A request with a JSON body. Subclasses also inherit the resource of its URL."""

    def __init__(self, ctx: FlexNodeContext, body: Document) -> None:
        super().__init__(ctx)
        self._body = body

    @property
    def header_parameters(self) -> dict[str, str]:
        return {**super().header_parameters, "Content-Type": "application/json"}

    @property
    def content(self) -> Document:
        return self._body


class PutOperation(BodyOperation):
    """Replaces the resource with this etag. Without an etag, creates a new one."""

    METHOD = "PUT"

    def __init__(self, ctx: FlexNodeContext, properties: Document, *, etag: str = "") -> None:
        super().__init__(ctx, {"properties": properties})
        self._precondition = {"If-Match": etag} if etag else {"If-None-Match": "*"}

    @property
    def header_parameters(self) -> dict[str, str]:
        return {**super().header_parameters, **self._precondition}


class ActionOperation(BodyOperation):
    """Sends an action of a resource, for example `apply`."""

    METHOD = "POST"

    def __init__(self, ctx: FlexNodeContext, action: str, body: Document | None = None) -> None:
        super().__init__(ctx, body or {})
        self._action = action

    @property
    def url(self) -> str:
        return f"{super().url}/{self._action}"


class DeleteOperation(NodeOperation):
    """Deletes a resource. Returns whether there was one."""

    METHOD = "DELETE"

    def __call__(self) -> bool:
        answer = self.client.send_request(request=self.make_request(), stream=False).http_response
        if answer.status_code not in {200, 204}:  # neither has a body
            self.on_error(answer)
        return bool(answer.status_code == 200)


class PutNode(PutOperation, GetNode):
    """Replaces the node with this etag. Without an etag, creates a new node."""

    def __init__(
        self,
        ctx: FlexNodeContext,
        properties: Document,
        *,
        etag: str = "",
        url: bool = False,
        downgrade: bool = False,
        override: bool = False,
    ) -> None:
        super().__init__(ctx, properties, etag=etag)
        self._flags = {"configUrl": url, "allowDowngrade": downgrade, "overrideRollout": override}

    @property
    def query_parameters(self) -> dict[str, str]:
        return {**super().query_parameters, **{name: "true" for name, is_set in self._flags.items() if is_set}}


class DeleteNode(GetNode):
    """Deletes a node. Returns None if it does not exist."""

    METHOD = "DELETE"


class RegenerateToken(ActionOperation, GetNode):
    """Creates a new token and configuration URL. With `replace`, another machine than the current one may use it."""

    def __init__(self, ctx: FlexNodeContext, *, replace: bool = False) -> None:
        super().__init__(ctx, "regenerateToken", {"replaceMachine": True} if replace else {})


class RevokeKey(GetNode):
    """Revokes the key of a node."""

    METHOD = "POST"

    @property
    def url(self) -> str:
        return f"{super().url}/revokeKey"


class ReleaseNode(GetNode):
    """Releases an enrolled node for re-imaging."""

    METHOD = "POST"

    @property
    def url(self) -> str:
        return f"{super().url}/release"
