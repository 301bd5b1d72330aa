"""The agent's own version, where the configuration names one: fetched and put in place like any other program.

Which version runs is said by a link that is no part of this: `renewing` turns it when a version has been checked, and
`launch` turns it back when that version does not prove itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts import Wanted
from aks_flex_node.agent.components.sources import artifact, filled, plain
from aks_flex_node.agent.components.templates import filled as template
from aks_flex_node.agent.engine.component import Component
from aks_flex_node.agent.engine.resources import Directory, File, Found, Program, Spec

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.machine import Machine

MOST_STARTS = 3  # of a version that has not proven itself
WANTED = (Wanted("bin/", "bin/"), Wanted("lib/", "lib/"))


def folder(config: NodeConfig) -> str:
    return f"{config.paths.install_dir}/agent"


def launcher(config: NodeConfig) -> str:
    return f"{folder(config)}/launch"


def current(config: NodeConfig) -> str:
    """The link to the version that runs; where there is none, the machine's own program does."""
    return f"{folder(config)}/current"


def place(config: NodeConfig) -> str:
    """Where the version stands that the configuration names."""
    return f"{folder(config)}/{plain(config.agent.version or '')}"


def trial(config: NodeConfig) -> str:
    """Says that a version is on trial: from where, to where, how often it was started, for which configuration."""
    return f"{config.paths.data_dir}/agent-trial"


def failed(config: NodeConfig) -> str:
    """Says that a version did not work: which, of which configuration, and why."""
    return f"{config.paths.data_dir}/agent-failed"


def desired(config: NodeConfig, machine: Machine) -> Spec:
    if not (config.continuous_monitoring and config.agent.version):
        return Spec()
    version = plain(config.agent.version)
    url = filled(config.agent.url, version, version, machine.arch)
    return Spec(
        (
            Directory(folder(config), ours=True),
            Program(place(config), "agent", version, (artifact("agent", version, url, WANTED, config.agent.sha256),)),
            File(launcher(config), launch(config, machine), 0o755),
            *(Found(path) for path in (current(config), trial(config), failed(config))),
        )
    )


def launch(config: NodeConfig, machine: Machine) -> bytes:
    return template(
        __package__ or "",
        "launch",
        agent=folder(config),
        home=machine.program,
        trial=trial(config),
        failed=failed(config),
        most=str(MOST_STARTS),
    )


COMPONENT = Component("release", "the agent's own version", desired)
