"""Stages programs in the background (download, verify, unpack) while earlier components are applied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.model import Artifact, ArtifactTree
from aks_flex_node.agent.http.download_options import DownloadOptions
from aks_flex_node.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.agent.artifacts.download import Transfer
    from aks_flex_node.agent.artifacts.trust import LocalDigests
    from aks_flex_node.agent.reconcile.resources import ProgramTree
    from aks_flex_node.settings.models import NodeConfig


STAGED_FOLDER = "next"  # not the name of a digest, so that cleaning the cache keeps it


def artifact_sources(config: NodeConfig) -> DownloadOptions:
    artifacts, proxy = config.artifacts, config.proxy
    return DownloadOptions(
        base_url=artifacts.base_url,
        bundle=artifacts.bundle,
        ca_file=artifacts.ca_file,
        http_proxy=proxy.http,
        https_proxy=proxy.https,
        no_proxy=proxy.no_proxy,
        parallel=artifacts.parallel,
        attempts=artifacts.attempts,
        stall_seconds=artifacts.stall_seconds,
    )


class ProgramStager:
    """Downloads, verifies and unpacks programs through the artifact store. With `ahead`, it builds them in a
    directory of the artifact cache, from which the stager of the update takes them.
    """

    def __init__(
        self, config: NodeConfig, observe: Callable[[Transfer], None] | None = None, *, ahead: bool = False
    ) -> None:
        from aks_flex_node.agent.artifacts.store import ArtifactStore  # imports modules that the daemon does not need

        self._ahead, self._folder = ahead, staging_folder(config)
        self._sources = artifact_sources(config)
        self._store = ArtifactStore(
            Path(cache_dir(config)), self._sources, observe=observe, digests=local_digests(config)
        )

    def prepare(self, programs: Sequence[ProgramTree]) -> None:
        """Starts to stage all programs in the background, in this order."""
        if programs:
            self._store.prepare([self._tree(program) for program in programs])

    def finish(self, program: ProgramTree, seconds: float) -> None:
        """Waits until a program is complete at its staging path."""
        self._store.wait(self._tree(program), seconds)

    def _tree(self, program: ProgramTree) -> ArtifactTree:
        require_encrypted(self._sources, program.artifacts)
        built = Path(self._folder) / tree_name(program)
        tree = program_tree(program)
        return replace(tree, staging=built) if self._ahead else replace(tree, ahead=built)

    def transfers(self) -> list[Transfer]:
        return self._store.transfers()

    def close(self) -> None:
        self._store.close()


def require_encrypted(sources: DownloadOptions, artifacts: Sequence[Artifact]) -> None:
    """Raises ArtifactError for a file that would be requested without TLS. A configuration that is already in effect
    can have such a URL.
    """
    urls = () if sources.bundle else (sources.resolve(artifact.url) for artifact in artifacts)
    if plain := next((each for each in urls if not each.url.startswith("https://")), None):
        raise ArtifactError(
            "artifact-url-not-encrypted",
            f"{plain} is not encrypted, so it is not downloaded.",
            "Use an https URL in `artifacts.baseURL` or in the `url` of the component. For a private CA, set "
            "`artifacts.caFile`. Or use an offline bundle (`artifacts.bundle`).",
        )


def local_digests(config: NodeConfig) -> LocalDigests:
    from aks_flex_node.agent.artifacts.trust import load_local_digests

    return load_local_digests(config.artifacts.checksums_file)


def cache_dir(config: NodeConfig) -> str:
    return f"{config.paths.data_dir}/artifacts"


def staging_folder(config: NodeConfig) -> str:
    """Returns the directory of programs that are staged for the next configuration."""
    return f"{cache_dir(config)}/{STAGED_FOLDER}"


def tree_name(program: ProgramTree) -> str:
    """Returns the name of a program in the staging folder."""
    return program.path.strip("/").replace("/", "-")


def program_tree(program: ProgramTree) -> ArtifactTree:
    return ArtifactTree(program.component, program.version, program.artifacts, Path(program.staging_path))
