"""Builds artifact URLs from templates, versions and architectures, and the URLs of their checksum files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.model import Artifact, ArtifactFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.settings.models import Agent, Cni, Containerd, Npd, Runc

    Release = Agent | Cni | Containerd | Npd | Runc


def plain_version(version: str) -> str:
    """Returns the version without a leading `v`."""
    return version.removeprefix("v")


def version_key(version: str) -> tuple[tuple[int, ...], bool, tuple[tuple[int, str], ...]]:
    """Returns a sort key for versions: 1.10 is after 1.9, and 2.0.0-rc.1 is before 2.0.0."""
    numbers, dash, suffix = version.partition("+")[0].partition("-")
    parts = tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[.]", suffix) if part)
    plain = tuple(int(part) if part.isdigit() else 0 for part in numbers.split("."))
    return (plain, not dash, parts)


def minor_version(version: str) -> tuple[int, int] | None:
    """Returns the major and the minor number of a version, or None if it has none."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def fill_named_url(template: str, version: str, arch: str, name: str = "") -> str:
    """Replaces `{version}`, `{arch}` and `{name}` in a URL template."""
    for placeholder, value in (("{version}", version), ("{arch}", arch), ("{name}", name)):
        template = template.replace(placeholder, value)
    return template


def fill_url(template: str, *values: str) -> str:
    """Replaces each `%s` in a URL template with the next value."""
    rest = list(values)
    return re.sub(r"%s", lambda _: rest.pop(0) if rest else values[-1], template)


def release_urls(settings: Release, arch: str, order: str) -> tuple[str, str]:
    """Returns the URL of a release, and that at its publisher. `order` says what each `%s` in the URL template stands
    for: `v` for the version, `a` for the architecture.
    """
    version = settings.version or ""
    values = [version if each == "v" else arch for each in order]
    templates = (settings.url, type(settings)().url)
    url, publisher = (fill_url(fill_named_url(each, version, arch), *values) for each in templates)
    return url, publisher


def release(component: str, settings: Release, arch: str, order: str, *files: ArtifactFile) -> Artifact:
    """Returns the artifact of a component with its URL as in `release_urls`."""
    url, publisher = release_urls(settings, arch, order)
    return artifact(component, settings.version or "", url, files, settings.sha256, publisher)


def artifact(
    component: str,
    version: str,
    url: str,
    files: tuple[ArtifactFile, ...],
    hashes: Mapping[str, str],
    publisher: str,
) -> Artifact:
    """Returns an artifact with the digest of the configuration, if any, and the publisher's checksum files.

    `publisher` is the URL of the file at its publisher, from a template of the agent. Its checksum files verify a
    file of the same name from any server. A file of another name needs a digest of the administrator.
    """
    name = _file_name(url)
    pinned = hashes.get(name, "")
    source = publisher if _file_name(publisher) == name else ""
    digest = f"sha256:{pinned}" if pinned else ""
    return Artifact(component, version, url, files, digest, source, _checksum_urls(source) if source else ())


def _file_name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


def _checksum_urls(url: str) -> tuple[str, ...]:
    """Returns the URLs in the order of the publisher's convention, to avoid failed requests."""
    folder, _, name = url.rpartition("/")
    plain_file, sum_file, long_file = f"{url}.sha256", f"{url}.sha256sum", f"{url}.sha512"
    if name.startswith("containerd-"):
        return (sum_file, plain_file)
    if name.startswith("runc."):
        return (f"{folder}/{name.split('.', 1)[0]}.sha256sum", plain_file, sum_file)
    if name.startswith("node-problem-detector"):
        return (long_file, plain_file, sum_file)
    return (plain_file, sum_file, long_file)
