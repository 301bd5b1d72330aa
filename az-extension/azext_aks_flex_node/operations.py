"""Requests to the service as AAZ operations. Responses are returned unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from azure.cli.core.aaz import AAZHttpOperation

from azext_aks_flex_node.client import CLIENT
from azext_aks_flex_node.vendored.contract import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from azext_aks_flex_node.client import FlexNodeContext

    Document = dict[str, Any]

CLUSTER = (
    "/subscriptions/{subscriptionId}/resourceGroups/{resourceGroupName}/providers/Microsoft.ContainerService"
    "/managedClusters/{clusterName}"
)
ONLY_NEW = {"If-None-Match": "*"}


class ServiceRequest(AAZHttpOperation):
    """A request about a resource below the cluster of the command: a GET, or a POST if it has a body."""

    CLIENT_TYPE = CLIENT

    def __init__(
        self,
        ctx: FlexNodeContext,
        *path: str,
        method: str = "",
        body: Document | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(ctx)
        self._path, self._body, self._query, self._headers = path, body, query or {}, headers or {}
        self._method = method or ("GET" if body is None else "POST")

    def __call__(self) -> Any:
        """Returns the document of the response, or None if there was nothing to delete."""
        session = self.client.send_request(request=self.make_request(), stream=False)
        answer = session.http_response
        if answer.status_code == 204:
            return None
        if answer.status_code in {200, 201}:
            return self.deserialize_http_content(session) or {}
        return self.on_error(answer)

    def make_request(self) -> Any:
        """Sends the request for the next page to this service, whatever the host of the link: it carries a token."""
        if self._method != "GET" or not self.ctx.next_link:
            return super().make_request()
        link = urlsplit(str(self.ctx.next_link))
        return self.client.get(self.client.format_url(f"{link.path}?{link.query}"), headers=self.header_parameters)

    @property
    def url(self) -> str:
        cluster = self.client.format_url(
            CLUSTER,
            **self.serialize_url_param("subscriptionId", self.ctx.subscription_id),
            **self.serialize_url_param("resourceGroupName", self.ctx.args.resource_group),
            **self.serialize_url_param("clusterName", self.ctx.args.cluster_name),
        )
        return "/".join((cluster, *(self.serialize_url_param("part", each)["part"] for each in self._path)))

    @property
    def method(self) -> str:
        return self._method

    @property
    def content(self) -> Document | None:
        return self._body

    @property
    def query_parameters(self) -> Document:
        parameters = {"api-version": API_VERSION, **self._query}
        return {name: self.serialize_query_param(name, value)[name] for name, value in parameters.items()}

    @property
    def header_parameters(self) -> dict[str, str]:
        kind = {} if self._body is None else {"Content-Type": "application/json"}
        return {"Accept": "application/json", **kind, **self._headers}

    @property
    def error_format(self) -> str:
        return "MgmtErrorFormat"
