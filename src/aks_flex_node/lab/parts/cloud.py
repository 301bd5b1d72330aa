"""The lab's Azure: Entra ID and the front of Azure Resource Manager, one program at one address."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.lab import network
from aks_flex_node.lab.arm.assignments import Assignments
from aks_flex_node.lab.entra.directory import TENANT, Directory
from aks_flex_node.lab.parts.metadata import Metadata
from aks_flex_node.lab.parts.part import Part
from aks_flex_node.lab.parts.probes import answers
from aks_flex_node.lab.pki import Authority

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.lab.kernel.namespaces import Namespace
    from aks_flex_node.lab.layout import Layout


@dataclass(frozen=True)
class Azure:
    layout: Layout
    cloud: Namespace

    @property
    def state(self) -> Path:
        """Where its principals, clusters and role assignments are, for `Directory`, `Resources` and `Assignments`."""
        return self.layout.parts / "azure" / "state"

    @property
    def directory(self) -> Directory:
        return Directory(self.state)

    @property
    def assignments(self) -> Assignments:
        return Assignments(self.state, self.directory)

    @property
    def metadata(self) -> Metadata:
        return Metadata(self.layout, self.state)

    def azure(self, provider: str, provider_authority: Path, resolver: Path) -> Part:
        """`provider` is the URL of the resource provider, and who vouches for it."""
        authority = Authority(self.layout.pki)
        serving = authority.issue(
            "azure", "azure", names=(network.LOGIN_NAME, network.MANAGEMENT_NAME, network.AZURE)
        )
        argv = (
            *(sys.executable, "-m", "aks_flex_node.lab.arm"),
            f"--listen={network.AZURE}:443",
            f"--cert={serving.certificate}",
            f"--key={serving.key}",
            f"--state={self.state}",
            f"--provider={provider}",
            f"--provider-ca={provider_authority}",
        )
        path = f"/{TENANT}/v2.0/.well-known/openid-configuration"
        ready = answers(self.cloud, network.AZURE, 443, path, authority.certificate)
        return Part("azure", argv, network.MANAGEMENT_URL, ready, self.cloud, resolver=resolver)
