"""The URL templates of all components have the same placeholders."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.components import cni, containerd, kubernetes, npd, runc
from aks_flex_node.agent.components.service import release
from tests.unit.agent.builders import MACHINE, config_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.agent.reconcile.resources import Spec
    from aks_flex_node.settings.models import NodeConfig

RELEASES = "https://github.com"
CASES: list[tuple[Callable[[NodeConfig, Machine], Spec], str, str, str]] = [
    # Document 3, steps 5 and 6, print the first two.
    (runc.desired, "runc.url", f"{RELEASES}/opencontainers/runc/releases/download/v{{version}}/runc.amd64", "amd64"),
    (
        containerd.desired,
        "containerd.url",
        f"{RELEASES}/containerd/containerd/releases/download/v{{version}}/containerd-{{version}}-linux-amd64.tar.gz",
        "amd64",
    ),
    (containerd.desired, "containerd.url", "https://m.example/{version}/containerd-{arch}.tar.gz", "arm64"),
    (runc.desired, "runc.url", "https://m.example/{arch}/runc-{version}", "arm64"),
    (runc.desired, "runc.url", "https://m.example/a%20b/runc", "arm64"),
    (cni.desired, "cni.url", "https://m.example/{arch}/{version}/{version}.tgz", "arm64"),
    (npd.desired, "npd.url", "https://m.example/{version}/npd-{arch}.tar.gz", "arm64"),
    (release.desired, "agent.url", "https://m.example/{version}/agent-{arch}.tar.gz", "arm64"),
    (kubernetes.desired, "kubernetes.urlTemplate", "https://m.example/{version}/node-{arch}.tar.gz", "arm64"),
]


@pytest.mark.parametrize(("desired", "key", "template", "arch"), CASES, ids=lambda value: str(value)[-40:])
def test_version_and_architecture_are_filled_in_every_url(
    desired: Callable[[NodeConfig, Machine], Spec], key: str, template: str, arch: str
) -> None:
    part = key.partition(".")[0]
    values: dict[str, object] = {key: template, "continuousMonitoring": True, f"{part}.version": "1.2.3"}
    (program,) = desired(config_of(values), replace(MACHINE, arch=arch)).programs
    assert [one.url for one in program.artifacts] == [template.format(version="1.2.3", arch=arch)]


@pytest.mark.parametrize(
    ("template", "checksum"),
    [
        ("https://m.example/{arch}/runc.{arch}", "/opencontainers/runc/releases/download/v1.2.3/runc.sha256sum"),
        ("https://m.example/{arch}/runc-{version}", ""),
    ],
    ids=["same name", "renamed"],
)
def test_mirror_of_the_same_file_name_uses_the_publishers_checksums(template: str, checksum: str) -> None:
    config = config_of({"runc.url": template, "runc.version": "1.2.3"})
    (program,) = runc.desired(config, MACHINE).programs
    assert "".join(program.artifacts[0].checksums[:1]) == (checksum and f"{RELEASES}{checksum}")
    assert all(url.startswith(RELEASES) for url in program.artifacts[0].checksums)
