"""Azure as the registration sees it: by its operator's eyes, and by the machine's own."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.agent.engine.workshop import sources
from aks_flex_node.azure.roles import RolesArm

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from aks_flex_node.agent.config.models import NodeConfig


class MachinesArm(RolesArm, Protocol):
    def patch(self, path: str, api_version: str, body: Any) -> dict[str, Any]: ...


class Cloud(Protocol):
    def operator(self) -> AbstractContextManager[MachinesArm]:
        """Azure's resource manager as whoever registers machines."""
        ...

    def machine(self) -> AbstractContextManager[RolesArm]:
        """The same as this machine's own identity."""
        ...

    def token(self) -> str:
        """The operator's, for Azure's resource manager."""
        ...

    def text(self, url: str) -> str:
        """A small file that anybody may have."""
        ...


class LiveCloud:
    """Azure itself. Its libraries are imported when they are needed."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config

    def operator(self) -> AbstractContextManager[MachinesArm]:
        from aks_flex_node.agent.identities import signing  # noqa: PLC0415

        return signing.arm(self._config, operator=True)

    def machine(self) -> AbstractContextManager[RolesArm]:
        from aks_flex_node.agent.identities import signing  # noqa: PLC0415

        return signing.arm(self._config)

    def token(self) -> str:
        from aks_flex_node.agent.identities import signing  # noqa: PLC0415
        from aks_flex_node.agent.identities.clouds import resource_manager  # noqa: PLC0415

        scope = f"{resource_manager(self._config)}/.default"
        return signing.sign_in(self._config, scope, operator=True).value

    def text(self, url: str) -> str:
        from aks_flex_node.agent.artifacts.connections import Network  # noqa: PLC0415
        from aks_flex_node.agent.artifacts.downloads import fetch_text  # noqa: PLC0415
        from aks_flex_node.agent.artifacts.persistence import Pace, Persistence  # noqa: PLC0415

        ways = sources(self._config)
        with contextlib.closing(Network(ways)) as network:
            return fetch_text(network, ways.place(url), Persistence(ways.attempts, Pace(), threading.Event()))
