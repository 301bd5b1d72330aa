"""Where programs come from: URL templates filled in for a version and an architecture, and the checksum files
beside them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts import Artifact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.artifacts import ArtifactFile


def plain_version(version: str) -> str:
    """A version without the `v` that some people write before it."""
    return version.removeprefix("v")


def fill_named_url(template: str, version: str, arch: str, name: str = "") -> str:
    """A template with `{version}`, `{arch}` and `{name}` filled in, where it uses these."""
    for word, value in (("{version}", version), ("{arch}", arch), ("{name}", name)):
        template = template.replace(word, value)
    return template


def fill_url(template: str, *values: str) -> str:
    """A template with its `%s` filled in, as many as it has."""
    rest = list(values)
    return re.sub(r"%s", lambda _: rest.pop(0) if rest else values[-1], template)


def artifact(
    component: str, version: str, url: str, files: tuple[ArtifactFile, ...], hashes: Mapping[str, str]
) -> Artifact:
    """An artifact with the hash that the configuration pins, else with the addresses of the publisher's."""
    address, mark, query = url.partition("?")  # which may hold a signature that the checksum needs, too
    folder, _, name = address.rpartition("/")
    pinned = hashes.get(name, "")
    program = name.split(".", 1)[0]
    bases = (f"{address}.sha256", f"{address}.sha256sum", f"{folder}/{program}.sha256sum", f"{address}.sha512")
    checksums = tuple(f"{base}{mark}{query}" for base in bases)
    return Artifact(
        component, version, url, files, f"sha256:{pinned}" if pinned else "", _order_checksums(name, checksums)
    )


def _order_checksums(name: str, checksums: tuple[str, ...]) -> tuple[str, ...]:
    """The same addresses, the one that this publisher uses first, so that the others are rarely asked."""
    plain_file, sum_file, folder_sum, long_file = checksums
    if name.startswith("containerd-"):
        return (sum_file, plain_file)
    if name.startswith("runc."):
        return (folder_sum, plain_file, sum_file)
    if name.startswith("node-problem-detector"):
        return (long_file, plain_file, sum_file)
    return (plain_file, sum_file, long_file)
