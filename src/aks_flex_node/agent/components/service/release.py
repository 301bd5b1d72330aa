"""The release component: the version of the agent that the configuration sets, installed like any other program.

A link outside this component selects the running version: self_update switches it to a checked version, and the
launch script switches it back when that version fails its trial.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.model import Artifact, ArtifactFile
from aks_flex_node.agent.components.artifact_urls import artifact, release_urls
from aks_flex_node.agent.components.templates import render_template as template
from aks_flex_node.agent.config.resolved import config_source_kind
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import Directory, File, ProgramTree, RuntimePath, Spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.settings.models import NodeConfig

MAX_TRIAL_STARTS = 3  # of a version on trial
DESIRED_RELEASE = (ArtifactFile("bin/", "bin/"), ArtifactFile("lib/", "lib/"))


def releases_dir(config: NodeConfig) -> str:
    return f"{config.paths.install_dir}/agent"


def launcher_path(config: NodeConfig) -> str:
    return f"{releases_dir(config)}/launch"


def current_link(config: NodeConfig) -> str:
    """Returns the link to the running version. Without it, the program installed on the machine runs."""
    return f"{releases_dir(config)}/current"


def release_path(config: NodeConfig) -> str:
    """Returns the path of the configured version."""
    return f"{releases_dir(config)}/{config.agent.version}"


def trial_file(config: NodeConfig) -> str:
    """Returns the file that records a trial: previous path, new path, number of starts, configuration version."""
    return f"{config.paths.data_dir}/agent-trial"


def failed_file(config: NodeConfig) -> str:
    """Returns the file that records a failed version: path, configuration version and reason."""
    return f"{config.paths.data_dir}/agent-failed"


def configured_version(config: NodeConfig) -> str:
    """Returns the version that the configuration sets; empty for the installed program. Only a node with a config
    source can set it, because a version must reach the source to pass its trial."""
    return (config.agent.version or "") if config_source_kind(config) != "local" else ""


def desired(config: NodeConfig, machine: Machine) -> Spec:
    version = configured_version(config)
    if not version:
        return Spec()
    return Spec(
        (
            Directory(releases_dir(config), ours=True),
            ProgramTree(
                release_path(config),
                "agent",
                version,
                (signed_artifact(version, *release_urls(config.agent, machine.arch, "vva"), config.agent.sha256),),
            ),
            File(
                launcher_path(config),
                template(
                    __package__ or "",
                    "launch",
                    agent=releases_dir(config),
                    home=machine.program,
                    trial=trial_file(config),
                    failed=failed_file(config),
                    most=str(MAX_TRIAL_STARTS),
                ),
                0o755,
            ),
            *(RuntimePath(path) for path in (current_link(config), trial_file(config), failed_file(config))),
        )
    )


def signed_artifact(version: str, url: str, publisher: str, hashes: Mapping[str, str]) -> Artifact:
    """Returns the archive of a release. Its name in the signed list contains version and architecture, so an earlier
    release cannot be served as a later one.
    """
    made = artifact("agent", version, url, DESIRED_RELEASE, hashes, publisher)
    listed = f"{url.partition('?')[0].rpartition('/')[0]}/SHA256SUMS"
    return replace(made, publisher_url=publisher, checksums=(), signed_list=listed)


COMPONENT = Component("release", "the agent's own version", desired)
