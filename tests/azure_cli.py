"""The real az from the lab's tools, configured for a cloud of the lab."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_lab.layout import lab_layout
from aks_flex_lab.processes import run
from aks_flex_lab.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.processes import CommandResult
    from tests.service.lab.cloud_harness import Cloud

TOOL = "azure-cli"
BUILD = Path(__file__).parents[1] / "scripts" / "az-extension"


def program() -> Path:
    """Returns az, and installs it first if `make test` has not done so."""
    toolbox = Toolbox(lab_layout().cache)
    toolbox.install([TOOL])
    return toolbox.path(TOOL, "az")


def build_extension(folder: Path) -> Path:
    """Builds the wheel of `az aks flex-node`."""
    run(BUILD, folder)
    [wheel] = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Az:
    """A user's az with its own configuration directory."""

    program: Path
    folder: Path
    ca: str

    @classmethod
    def at(cls, cloud: Cloud, folder: Path) -> Az:
        az = cls(program(), folder, cloud.ca)
        az("cloud", "register", "--name", "Lab", "--endpoint-resource-manager", cloud.url)
        az("cloud", "set", "--name", "Lab")
        return az

    @classmethod
    def signed_in(cls, cloud: Cloud, folder: Path, role: str, scope: str) -> Az:
        """Returns an az that is signed in as a new principal with this role."""
        az = cls.at(cloud, folder)
        principal = cloud.directory.service_principal("az", "right")
        cloud.assignments.put(scope, role, principal.object_id)
        az.sign_in(principal)
        return az

    def sign_in(self, principal: EntraPrincipal) -> None:
        words = ("--username", principal.client_id, "--password", principal.secret, "--tenant", TENANT_ID)
        self("login", "--service-principal", *words)

    def __call__(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--output", "json").out or "null")

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AZURE_CONFIG_DIR": str(self.folder),
            "REQUESTS_CA_BUNDLE": self.ca,
            "AZURE_CORE_INSTANCE_DISCOVERY": "false",
            "AZURE_CORE_COLLECT_TELEMETRY": "false",
        }

    def run(
        self,
        *words: str,
        check: bool = True,
        input: str | None = None,  # noqa: A002 - as in processes.run
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        return run(self.program, *words, input=input, env={**self.environment, **(env or {})}, check=check)
