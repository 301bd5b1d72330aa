"""Resource groups: those that the lab's clusters are in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from aks_flex_node.lab.arm.answers import Refusal

if TYPE_CHECKING:
    import re

    from starlette.requests import Request

    from aks_flex_node.lab.arm.app import Front, Handler
    from aks_flex_node.lab.arm.resources import ManagedCluster, Resources

TYPE = "Microsoft.Resources/resourceGroups"
GROUP = r"(?P<group>/subscriptions/[^/]+/resourcegroups/(?P<group_name>[^/]+))"
READ = "Microsoft.Resources/subscriptions/resourceGroups/read"


class Groups:
    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def handlers(self, front: Front) -> list[tuple[str, str, Handler]]:
        async def shown(_: Request, who: str, found: re.Match[str]) -> Response:
            front.need(who, READ, found["group"])
            return JSONResponse(self.known(found["group"]))

        async def exists(_: Request, who: str, found: re.Match[str]) -> Response:
            front.need(who, READ, found["group"])
            return Response(status_code=204 if found["group"].lower() in self._all() else 404)

        async def listed(_: Request, who: str, __: re.Match[str]) -> Response:
            mine = [each for each in self._all().values() if front.assignments.allows(who, READ, each["id"])]
            return JSONResponse({"value": mine})

        return [
            ("GET", GROUP, shown),
            ("HEAD", GROUP, exists),
            ("GET", "/subscriptions/[^/]+/resourcegroups", listed),
        ]

    def known(self, group: str) -> dict[str, Any]:
        found = self._all().get(group.lower())
        if found is None:
            name = group.rpartition("/")[2]
            raise Refusal(404, "ResourceGroupNotFound", f"Resource group '{name}' could not be found.")
        return found

    def _all(self) -> dict[str, dict[str, Any]]:
        return {each["id"].lower(): each for each in map(_group, reversed(self._resources.clusters()))}


def _group(cluster: ManagedCluster) -> dict[str, Any]:
    id_ = cluster.id.partition("/providers/")[0]
    return {
        "id": id_,
        "name": id_.rpartition("/")[2],
        "type": TYPE,
        "location": cluster.location,
        "properties": {"provisioningState": "Succeeded"},
    }
