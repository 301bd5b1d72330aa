"""The requests to the service, one class each, in AAZ's form; responses are passed through unchanged."""

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


class _Operation(AAZHttpOperation):
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


class ListNodes(_Operation):
    """One page: the first, or the one that the context says is next."""

    def __init__(self, ctx: FlexNodeContext, filter_text: str) -> None:
        super().__init__(ctx)
        self._filter = filter_text

    def make_request(self) -> Any:
        """Only this service is asked, whatever a link says: a token is sent with it."""
        if not self.ctx.next_link:
            return super().make_request()
        link = urlsplit(str(self.ctx.next_link))
        return self.client.get(self.client.format_url(f"{link.path}?{link.query}"), headers=self.header_parameters)

    @property
    def query_parameters(self) -> dict[str, str]:
        parameters = {**super().query_parameters, "$top": str(PAGE)}
        return {**parameters, **(self.serialize_query_param("$filter", self._filter) if self._filter else {})}


class GetNode(_Operation):
    @property
    def url(self) -> str:
        return f"{super().url}/{self.serialize_url_param('nodeName', self.ctx.args.name)['nodeName']}"


class PutNode(GetNode):
    """Replaces the node that has this etag; creates it, and only that, when none is given."""

    METHOD = "PUT"

    def __init__(
        self,
        ctx: FlexNodeContext,
        properties: Document,
        *,
        etag: str = "",
        url: bool = False,
        downgrade: bool = False,
    ) -> None:
        super().__init__(ctx)
        self._properties = properties
        self._guard = {"If-Match": etag} if etag else {"If-None-Match": "*"}
        self._flags = {"configUrl": url, "allowDowngrade": downgrade}

    @property
    def query_parameters(self) -> dict[str, str]:
        return {**super().query_parameters, **{name: "true" for name, is_set in self._flags.items() if is_set}}

    @property
    def header_parameters(self) -> dict[str, str]:
        return {**super().header_parameters, "Content-Type": "application/json", **self._guard}

    @property
    def content(self) -> Document:
        return {"properties": self._properties}


class DeleteNode(GetNode):
    METHOD = "DELETE"


class RegenerateToken(GetNode):
    METHOD = "POST"

    @property
    def url(self) -> str:
        return f"{super().url}/regenerateToken"
