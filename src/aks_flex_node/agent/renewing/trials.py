"""A version of the agent that is on trial, and one that has failed: two small files that a shell script reads, too.

The order in which they are written makes a cut at any instant harmless: what is on trial is written down before the
link is turned to it, and why it failed before the link is turned back.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aks_flex_node
from aks_flex_node.agent.components.agent import VERSION
from aks_flex_node.agent.components.service import release
from aks_flex_node.host.actions import MakeLink, Remove, WriteFile

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.host import Host

PACKAGE = str(Path(aks_flex_node.__file__).parent)  # of the agent that runs


@dataclass(frozen=True)
class Trial:
    origin: str  # where the version stands that is gone back to; nothing for the program that the machine had
    target: str  # where the version stands that is tried
    starts: int  # how often it was started
    configuration: str  # the configVersion that named it

    @property
    def text(self) -> bytes:
        return f"{self.origin}\n{self.target}\n{self.starts}\n{self.configuration}\n".encode()


def read(host: Host, config: NodeConfig) -> Trial | None:
    """The trial that is under way; None when there is none that can be read."""
    lines = _lines(host, release.trial(config), 4)
    if not lines or not lines[2].isdigit():
        return None
    return Trial(lines[0], lines[1], int(lines[2]), lines[3])


def begin(host: Host, config: NodeConfig) -> Trial:
    """Turn the link to the version that is wanted, so that the next start is its first."""
    trial = Trial(leads_to(host, config), release.place(config), 0, configuration(host))
    host.do(WriteFile(release.trial(config), trial.text, 0o600))
    host.do(MakeLink(release.current(config), trial.target))
    return trial


def fail(host: Host, config: NodeConfig, why: str) -> None:
    """Remember that the wanted version does not work, so that it is not tried again for the same configuration."""
    lines = (release.place(config), configuration(host), " ".join(why.split()))
    host.do(WriteFile(release.failed(config), ("\n".join(lines) + "\n").encode(), 0o600))


def go_back(host: Host, config: NodeConfig, trial: Trial, why: str) -> None:
    fail(host, config, why)
    if trial.origin and host.look(f"{trial.origin}/bin/aks-flex-node"):
        host.do(MakeLink(release.current(config), trial.origin))
    else:
        host.do(Remove(release.current(config)))
    host.do(Remove(release.trial(config)))


def prove(host: Host, config: NodeConfig, package: str = PACKAGE) -> None:
    """The agent that runs has shown that it does: if it was on trial, it is no longer."""
    trial = read(host, config)
    if trial and package.startswith(f"{trial.target}/"):
        host.do(Remove(release.failed(config)))
        host.do(Remove(release.trial(config)))


def failure(host: Host, config: NodeConfig) -> str:
    """Why the version that is wanted does not run; nothing when it does, or has not been tried."""
    lines = _lines(host, release.failed(config), 3)
    if not (lines and config.agent.version) or lines[:2] != [release.place(config), configuration(host)]:
        return ""
    return f"Version {config.agent.version} of the agent did not work, and the one before it runs: {lines[2]}"


def due(host: Host, config: NodeConfig) -> bool:
    """Whether another version of the agent is wanted than the one that is started, and was not tried in vain."""
    wanted = config.continuous_monitoring and bool(config.agent.version)
    return wanted and leads_to(host, config) != release.place(config) and not failure(host, config)


def leads_to(host: Host, config: NodeConfig) -> str:
    entry = host.look(release.current(config))
    return entry.target if entry else ""


def configuration(host: Host) -> str:
    """The version of the configuration in effect."""
    return (host.read(VERSION) or b"").decode(errors="replace").strip()


def _lines(host: Host, path: str, count: int) -> list[str]:
    """The lines of a file that has just so many; nothing of any other."""
    lines = (host.read(path) or b"").decode(errors="replace").splitlines()
    return lines if len(lines) == count else []
