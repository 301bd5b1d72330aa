"""Runs the pinned Azure CLI in the lab's cloud, with the extension of this checkout and signed in as an owner."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab import network, processes
from aks_flex_lab.components.resource_provider import OWNER_ROLE_ID, RESOURCE_GROUP_ID, resolv_conf
from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_lab.errors import HostError
from aks_flex_lab.files import file_lock, write_atomically
from aks_flex_lab.principals import LabPrincipals
from aks_flex_lab.supervisor import RESOLV_CONF_WRAPPER

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.progress import ProgressReporter

TOOL, CLOUD = "azure-cli", "Lab"
EXTENSION = "az-aks-flex-node"
CHECKOUT = Path(__file__).parents[2]
SOURCES = CHECKOUT / "az-extension"
BUILD = CHECKOUT / "scripts" / "az-extension"


@dataclass(frozen=True)
class LabAzureCli:
    lab: Lab

    @property
    def directory(self) -> Path:
        """az's configuration, tokens and extensions of this lab. They are removed with the lab."""
        return self.lab.layout.home / "az"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AZURE_CONFIG_DIR": str(self.directory),
            "AZURE_EXTENSION_DIR": str(self.directory / "cliextensions"),
            "REQUESTS_CA_BUNDLE": str(self.lab.authority.certificate),
            "AZURE_CORE_INSTANCE_DISCOVERY": "false",
            "AZURE_CORE_COLLECT_TELEMETRY": "false",
        }

    def command(self, *arguments: str) -> tuple[str, ...]:
        """Returns the command line that runs az in the network of the cloud, where the lab's names resolve."""
        az = self.lab.toolbox.path(TOOL, "az")
        wrapper = (*RESOLV_CONF_WRAPPER, resolv_conf(self.lab.layout))
        return self.lab.network.cloud.command(*wrapper, az, *arguments)

    def prepare(self, progress: ProgressReporter) -> None:
        """Installs az and the extension, registers the cloud, and signs in, if this is not done yet."""
        self.lab.toolbox.install([TOOL], progress)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file_lock(self.directory / "prepare.lock", "az of this lab", wait=True):
            self._install_extension()
            self._sign_in()

    def _install_extension(self) -> None:
        mark, target = self.directory / "extension", self.directory / "cliextensions" / EXTENSION
        found = _sources_hash()
        if mark.exists() and mark.read_text() == found and target.exists():
            return
        with tempfile.TemporaryDirectory() as folder:
            processes.run(BUILD, folder)
            [wheel] = Path(folder).glob("*.whl")
            shutil.rmtree(target, ignore_errors=True)
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(target)
        write_atomically(mark, found)

    def _sign_in(self) -> None:
        mark, secret = self.directory / "signed-in", self.directory / "secret"
        if mark.exists():
            return
        principals = LabPrincipals(self.lab.azure)
        principal = principals.with_secret("az", secret)
        principals.azure.assignments.put(RESOURCE_GROUP_ID, OWNER_ROLE_ID, principal.object_id)
        self._run("cloud", "set", "--name", "AzureCloud")  # az does not unregister the active cloud
        self._run("cloud", "unregister", "--name", CLOUD, check=False)  # of an interrupted preparation
        self._run("cloud", "register", "--name", CLOUD, "--endpoint-resource-manager", network.MANAGEMENT_URL)
        self._run("cloud", "set", "--name", CLOUD)
        who = ("--username", principal.client_id, "--password", f"@{secret}", "--tenant", TENANT_ID)
        self._run("login", "--service-principal", *who)
        write_atomically(mark, principal.client_id)

    def _run(self, *arguments: str, check: bool = True) -> None:
        processes.run(*self.command(*arguments), env=self.environment, check=check)


def _sources_hash() -> str:
    """Returns a hash of the extension's sources, to build it again after a change."""
    if not BUILD.exists():
        raise HostError(
            "checkout-required",
            "The extension of az can be built only from a checkout.",
            "Clone the repository, run `make setup`, and use its .venv/bin/aks-flex-lab.",
        )
    total = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            total.update(f"{path.relative_to(SOURCES)}\n".encode() + path.read_bytes())
    return total.hexdigest()
