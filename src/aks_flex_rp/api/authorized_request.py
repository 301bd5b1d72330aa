"""A request to an ARM resource after authorization, and links to the next page of its response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from aks_flex_node.api.machine_identity import MACHINE_HEADER, MachineIdentity, parse_machine_header
from aks_flex_rp.api.http_messages import json_response
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.nodes import queries
from aks_flex_rp.nodes.preconditions import Preconditions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request as Incoming
    from starlette.responses import Response

    from aks_flex_rp.api.authorization import ArmTarget, PoolTarget
    from aks_flex_rp.auth.roles import Operation
    from aks_flex_rp.nodes.context import ClusterInfo, RequestContext

    Handlers = dict[Operation, Callable[["AuthorizedRequest"], Awaitable[Response]]]

T = TypeVar("T")


@dataclass(frozen=True)
class AuthorizedRequest:
    """An authenticated and authorized request with its target."""

    http_request: Incoming
    query: Mapping[str, str]
    target: ArmTarget
    cluster: ClusterInfo
    request: RequestContext

    @property
    def preconditions(self) -> Preconditions:
        headers = self.http_request.headers
        return Preconditions(
            headers.get("if-match", ""),
            headers.get("if-none-match", ""),
            self.flag("allowDowngrade"),
            self.flag("overrideRollout"),
        )

    @property
    def machine(self) -> MachineIdentity | None:
        """The machine that sent the request, if an agent did."""
        return parse_machine_header(self.http_request.headers.get(MACHINE_HEADER, ""))

    @property
    def pool(self) -> PoolTarget:
        """The pools or the pool of a request that has such a target."""
        if self.target.pool is None:
            raise errors.unknown_path()
        return self.target.pool

    @property
    def page_query(self) -> queries.ListQuery:
        """The size and the start of a page of a list that has no filter."""
        return queries.parse_list_query(None, self.query.get("$top"), self.query.get("$skiptoken"))

    def page(self, shown: list[dict[str, Any]], found: Sequence[T], key: Callable[[T], str]) -> Response:
        """Returns the response with a page of a list. More was found than is shown if another page follows, which
        starts after the `key` of the last that is shown.
        """
        more = {}
        if len(found) > len(shown):
            after = queries.skip_token(key(found[len(shown) - 1]))
            more = {"nextLink": next_link(self.http_request, after)}
        return json_response(200, {"value": shown, **more})

    def flag(self, name: str) -> bool:
        text = self.query.get(name.lower(), "false").lower()
        if text not in {"true", "false"}:
            raise ArmError(400, "InvalidQueryParameterValue", "The value must be true or false.", name)
        return text == "true"


def next_link(incoming: Incoming, after: str) -> str:
    """Builds the link to the next page on the URL that the caller used, which ARM passes in the Referer header."""
    own = str(incoming.url)
    referrer = incoming.headers.get("referer", "")
    parts = urlsplit(referrer)
    base = referrer if parts.scheme == "https" and parts.path.lower() == incoming.url.path.lower() else own
    query = {name: value for name, value in parse_qsl(incoming.url.query) if name.lower() != "$skiptoken"}
    return f"{base.partition('?')[0]}?{urlencode({**query, '$skipToken': after}, safe='$')}"
