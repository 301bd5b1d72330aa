"""Help page: an entry of the error catalogue. It needs no network and no documentation site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node import error_catalog
from aks_flex_node.error_catalog import ErrorEntry, StatusName
from aks_flex_node.errors import CommandUsageError
from aks_flex_rp.arm.errors import ArmError

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_rp.dashboard.page_renderer import PageRenderer
    from aks_flex_rp.dashboard.page_request import PageRequest

CATALOG: dict[str, ErrorEntry | StatusName] = {
    **error_catalog.load_catalog("aks_flex_rp", "aks_flex_node"),
    **error_catalog.load_status_names(),
}


@dataclass(frozen=True)
class HelpPage:
    """Serves the help page of an error, reason, event or metric."""

    pages: PageRenderer

    async def show(self, request: PageRequest) -> Response:
        """Shows the entry of the name in the path."""
        name = request.incoming.path_params["name"]
        try:
            entry = error_catalog.find_entry(name, CATALOG)
        except CommandUsageError:
            raise ArmError(404, "NotFound", f"The catalogue does not contain an entry named {name[:80]}.") from None
        if isinstance(entry, StatusName):
            kind = f"Reason of {entry.condition}" if entry.condition else entry.kind.capitalize()
            cause, check, remedy, see = entry.meaning, "", entry.remedy, entry.see
        else:
            kind = f"Error: {entry.group}"
            cause, check, remedy, see = entry.cause, entry.check, entry.remedy, ""
        return self.pages.show(
            "help", request, title=entry.name, kind=kind, cause=cause, check=check, remedy=remedy, see=see
        )
