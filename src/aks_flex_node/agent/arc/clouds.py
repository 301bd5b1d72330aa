"""Azure as the registration sees it: by its operator's eyes, and by the machine's own."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.agent.reconcile.program_stager import artifact_sources
from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.azure.roles import RolesArm

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from aks_flex_node.agent.config.models import NodeConfig

API = "2024-07-10"


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
        from aks_flex_node.agent.identities import signing

        return signing.arm(self._config, operator=True)

    def machine(self) -> AbstractContextManager[RolesArm]:
        from aks_flex_node.agent.identities import signing

        return signing.arm(by_arc(self._config))

    def token(self) -> str:
        from aks_flex_node.agent.identities import signing
        from aks_flex_node.agent.identities.clouds import resource_manager

        scope = f"{resource_manager(self._config)}/.default"
        return signing.sign_in(self._config, scope, operator=True).value

    def text(self, url: str) -> str:
        from aks_flex_node.agent.artifacts.connections import Network
        from aks_flex_node.agent.artifacts.downloads import fetch_text
        from aks_flex_node.agent.artifacts.persistence import Pace, Persistence

        ways = artifact_sources(self._config)
        with contextlib.closing(Network(ways)) as network:
            return fetch_text(network, ways.place(url), Persistence(ways.attempts, Pace(), threading.Event()))


def by_arc(config: NodeConfig) -> NodeConfig:
    """The configuration of a node that is what Arc knows: `arc register` may be typed where another identity is the
    node's own."""
    azure = config.azure
    arc = azure.arc.model_copy(update={"enabled": True})
    return config.model_copy(update={"azure": azure.model_copy(update={"arc": arc})})


def find(arm: MachinesArm, machine: str) -> dict[str, Any] | None:
    """The machine as Azure has it; None when it has none by that name."""
    try:
        return arm.get(machine, API)
    except AzureCallError as error:
        if error.status != 404:
            raise
        return None


def principal_of(machine: dict[str, Any]) -> str:
    """The object id of a machine's identity. A machine that is made anew by the same name has another."""
    return str((machine.get("identity") or {}).get("principalId") or "")
