"""The configuration on this machine as a join source: files, environment and flags, or what an earlier run stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.bootstrap.sources.source import JoinSource
from aks_flex_node.lean_dataclass import dataclass

if TYPE_CHECKING:
    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.agent.progress import ProgressReporter


@dataclass
class FromLocalFile(JoinSource):
    own: LoadedConfig

    def fetch(self, progress: ProgressReporter) -> LoadedConfig:  # noqa: ARG002
        self.loaded = self.own
        return self.loaded
