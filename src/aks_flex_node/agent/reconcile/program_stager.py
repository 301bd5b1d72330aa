"""Stages programs in the background (download, verify, unpack) while earlier components are applied."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from aks_flex_node.agent.artifacts import ArtifactTree, DownloadOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.agent.artifacts import Transfer
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.reconcile.resources import ProgramTree


class ProgramStager(Protocol):
    def prepare(self, programs: Sequence[ProgramTree]) -> None:
        """Starts to stage all programs in the background, in this order."""
        ...

    def finish(self, program: ProgramTree, seconds: float) -> None:
        """Waits until a program is complete at its staging path."""
        ...

    def close(self) -> None: ...


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


class StoreProgramStager:
    """Downloads, verifies and unpacks programs through the artifact store."""

    def __init__(self, config: NodeConfig, observe: Callable[[Transfer], None] | None = None) -> None:
        from aks_flex_node.agent.artifacts import ArtifactStore  # imports modules that the daemon does not need

        self._store = ArtifactStore(Path(cache_dir(config)), artifact_sources(config), observe=observe)

    def prepare(self, programs: Sequence[ProgramTree]) -> None:
        if programs:
            self._store.prepare([program_tree(program) for program in programs])

    def finish(self, program: ProgramTree, seconds: float) -> None:
        self._store.wait(program_tree(program), seconds)

    def transfers(self) -> list[Transfer]:
        return self._store.transfers()

    def close(self) -> None:
        self._store.close()


def cache_dir(config: NodeConfig) -> str:
    return f"{config.paths.data_dir}/artifacts"


def program_tree(program: ProgramTree) -> ArtifactTree:
    return ArtifactTree(program.component, program.version, program.artifacts, Path(program.staging_path))


class Deadline:
    """The remaining time of a step."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())
