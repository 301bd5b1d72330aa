"""Runs the agent in a lab machine from a test."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aks_flex_lab import node_agent
from tests.wait import until_named

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.processes import CommandResult
    from aks_flex_lab.versions import NodeVersions


def install_agent(machine: EdgeMachine) -> None:
    """Installs the agent, after the machine's network is up."""
    until_named(machine, "api.flex.internal")
    node_agent.install(machine)


def prepare(lab: Lab, machine: EdgeMachine, versions: NodeVersions | None = None, **changes: Any) -> None:
    """Installs the agent and a configuration on a machine, after its network is up."""
    install_agent(machine)
    node_agent.write_configuration(machine, node_agent.configuration(lab, versions, changes))


def flex(machine: EdgeMachine, *words: str, check: bool = True, timeout: float = 600) -> CommandResult:
    """Runs `aks-flex-node` in a machine."""
    done = machine.run("aks-flex-node", *words, check=False, timeout=timeout)
    assert done.ok or not check, f"aks-flex-node {' '.join(words)}: exit {done.code}\n{done.out}\n{done.err}"
    return done


def facts(machine: EdgeMachine, *words: str, check: bool = True) -> Any:
    return json.loads(flex(machine, *words, "--json", check=check).out)


def exists(machine: EdgeMachine, path: str) -> bool:
    return machine.run("test", "-e", path, check=False).ok


def web_pod(name: str, node: str, *, app: str = "web", **spec: Any) -> dict[str, Any]:
    """Returns the manifest of a web server pod bound to a node."""
    container: dict[str, Any] = {
        "name": "web",
        "image": "mcr.microsoft.com/flex/test:1",
        "command": ["httpd", "-f", "-p", "80", "-h", "/www"],
        **spec,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": app}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [container],
        },
    }


def disruption_budget(name: str, *, app: str = "web", least: int = 1) -> dict[str, Any]:
    """Returns the manifest of a PodDisruptionBudget of the pods of an application."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": app}}},
    }


def pod_runs(lab: Lab, name: str) -> bool:
    pod = lab.cluster.get("pod", name)
    return bool(pod) and pod["status"].get("phase") == "Running"


def pods_of_budget(lab: Lab, name: str) -> int:
    """Returns how many healthy pods a disruption budget has counted."""
    return int(lab.cluster.get("poddisruptionbudget", name).get("status", {}).get("currentHealthy", 0))


def differences(before: Any, machine: EdgeMachine) -> list[str]:
    """Returns the changes of a machine since a snapshot, without settings that all machines share."""
    return [str(one) for one in machine.differences(before)]
