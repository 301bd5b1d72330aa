"""Why a configuration is not taken on now. Pure: whoever asks has looked at the machine and the cluster before."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.config import derived, files, loader
from aks_flex_node.agent.updating import windows
from aks_flex_node.agent.words import counted
from aks_flex_node.agent.works import Result

if TYPE_CHECKING:
    from datetime import datetime

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.updating.changes import Changes
    from aks_flex_node.agent.updating.configurations import Configuration
    from aks_flex_node.agent.updating.journals import Failure

MOST_MINORS_OLDER = 3


@dataclass(frozen=True)
class Verdict:
    """Not now, or not at all; and why."""

    result: Result
    reason: str
    message: str
    hint: str = ""
    again: bool = False


def for_another(current: NodeConfig, wanted: NodeConfig, name: str, wanted_name: str) -> Verdict | None:
    """A node's certificate is for one name in one cluster."""
    here, there = derived.cluster(current), derived.cluster(wanted)
    elsewhere = bool(here and there and [one.lower() for one in here] != [one.lower() for one in there])
    if name == wanted_name and not elsewhere:
        return None
    place, other = ("/".join(each) if each else "its cluster" for each in (here, there))
    return Verdict(
        Result.REFUSED,
        "ForAnotherNode",
        f"This machine is node {name} of {place}, and the configuration is for node {wanted_name} of {other}.",
        "Correct the resource; or take the node apart and join anew: `aks-flex-node unbootstrap`.",
    )


def relocated(current: NodeConfig, wanted: NodeConfig) -> Verdict | None:
    """A node that was made from a file may have its files elsewhere, of which its resource knows nothing."""
    if current.paths == wanted.paths:
        return None
    return Verdict(
        Result.REFUSED,
        "PathsDiffer",
        "The configuration has other paths than this node was made with, and a node's files are not moved.",
        "Take the node apart and join anew with the paths of the configuration: `aks-flex-node unbootstrap`.",
    )


def incomplete(wanted: NodeConfig) -> Verdict | None:
    """A node that has joined needs what a join needs, but for the token."""
    problems = [one for one in loader.require_join(wanted) if one.path != files.TOKEN_FILE]
    if not problems:
        return None
    words = " ".join(f"{one.path} {one.reason}" for one in problems)
    return Verdict(Result.REFUSED, "ConfigIncomplete", f"The configuration is not whole: {words}")


def failed_before(wanted: Configuration, failure: Failure | None) -> Verdict | None:
    if failure is None or (failure.version, failure.fingerprint) != (wanted.version, wanted.fingerprint):
        return None
    return Verdict(
        Result.FAILED,
        failure.reason,
        f"It was tried at {failure.at} and undone, and is not tried again: {failure.message}",
        "Change the configuration; any change makes the agent try anew.",
    )


def paused(wanted: NodeConfig) -> Verdict | None:
    if not wanted.update_policy.paused:
        return None
    message = "Updates of this node are paused: the new configuration waits."
    return Verdict(Result.WAITS, "Paused", message, "Set updatePolicy.paused to false.", again=True)


def downgrade(changes: Changes, wanted: NodeConfig) -> Verdict | None:
    if not changes.downgrades or wanted.update_policy.allow_downgrade:
        return None
    words = ", ".join(str(one) for one in changes.downgrades)
    return Verdict(
        Result.REFUSED,
        "DowngradeRefused",
        f"This would go back to older versions: {words}.",
        "If that is meant, update the node with allowDowngrade=true.",
    )


def skew(wanted: NodeConfig, server: str) -> Verdict | None:
    """A kubelet may be as new as the API server, and three minor versions older."""
    kubelet = wanted.kubernetes.version or ""
    (major, minor), (server_major, server_minor) = minor_of(kubelet), minor_of(server)
    behind = server_minor - minor
    if major == server_major and 0 <= behind <= MOST_MINORS_OLDER:
        return None
    newer = (major, minor) > (server_major, server_minor)
    what = "newer than" if newer else f"{counted(behind, 'minor version')} older than"
    rule = "may not be newer" if newer else f"may be at most {MOST_MINORS_OLDER} minor versions older"
    return Verdict(
        Result.REFUSED,
        "SkewViolation",
        f"Kubelet {kubelet} is {what} the API server, which is {server}; it {rule}.",
        "Upgrade the cluster first." if newer else "Choose a newer version of Kubernetes for this node.",
        again=True,  # a cluster may be upgraded
    )


def minor_of(version: str) -> tuple[int, int]:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def closed_window(changes: Changes, wanted: NodeConfig, now: datetime) -> Verdict | None:
    if not changes.disturbs:
        return None
    window = wanted.update_policy.maintenance_window
    opens = windows.opens(window, now)
    if opens is None:
        return None
    words = ", ".join(str(one) for one in changes.upgrades)
    when = f"{opens:%A %Y-%m-%d} at {opens:%H:%M} ({window.time_zone})"
    message = f"The maintenance window is closed; it opens on {when}. Until then this waits: {words}."
    return Verdict(Result.WAITS, "MaintenanceWindowClosed", message, again=True)
