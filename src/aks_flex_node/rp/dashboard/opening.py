"""The pages, put together from the service's parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.rp.dashboard.app import Dashboard
from aks_flex_node.rp.dashboard.audits import Audits
from aks_flex_node.rp.dashboard.counting import Counting
from aks_flex_node.rp.dashboard.creating import Creating
from aks_flex_node.rp.dashboard.editing import Editing
from aks_flex_node.rp.dashboard.entra import Entra
from aks_flex_node.rp.dashboard.fleet import Fleet
from aks_flex_node.rp.dashboard.joining_commands import Handing, Joining
from aks_flex_node.rp.dashboard.nodes import Nodes
from aks_flex_node.rp.dashboard.pages import Pages
from aks_flex_node.rp.dashboard.removing import Removing
from aks_flex_node.rp.dashboard.renewing import Renewing
from aks_flex_node.rp.dashboard.scopes import Scopes
from aks_flex_node.rp.dashboard.sessions import Sessions
from aks_flex_node.rp.dashboard.signing_in import SigningIn

if TYPE_CHECKING:
    from aks_flex_node.rp.auth.keys import AdminKey
    from aks_flex_node.rp.sealing import Sealer
    from aks_flex_node.rp.serving.arm import Arm
    from aks_flex_node.rp.settings import ServiceSettings


def open_dashboard(settings: ServiceSettings, arm: Arm, key: AdminKey, sealer: Sealer) -> Dashboard:
    wanted, doors = settings.dashboard, arm.doors
    entra = _entra(settings, sealer)
    pages = Pages([entra.authority] if entra else ())
    sessions = Sessions(doors.shop.store, wanted, lambda: key.mark)
    scopes = Scopes(doors)
    handing = Handing(sealer)
    by_key = key if wanted.admin_key else None
    signing_in = SigningIn(
        pages, sessions, doors.shop.store, doors.limits, by_key, str(settings.admin_key_file), entra
    )
    return Dashboard(
        pages,
        sessions,
        signing_in,
        Fleet(pages, scopes, Counting(doors.shop.store)),
        Nodes(pages, scopes, arm.reading),
        Editing(pages, scopes, arm.reading, arm.writing),
        Renewing(pages, scopes, arm.reading, arm.writing, arm.reporting.granting, handing),
        Removing(pages, scopes, arm.reading, arm.writing),
        Creating(pages, scopes, arm, handing),
        Joining(pages, scopes, arm.reading, handing),
        Audits(pages, scopes),
    )


def _entra(settings: ServiceSettings, sealer: Sealer) -> Entra | None:
    wanted = settings.dashboard.entra
    if wanted is None:
        return None
    ca_file = str(settings.azure.ca_file) if settings.azure.ca_file else None
    return Entra(wanted, settings.azure.authority, ca_file, settings.origin, sealer)
