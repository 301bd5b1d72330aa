"""Compares the observed state of a node with its desired state, from outside."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from aks_flex_node.api.contract import CORDONED_ANNOTATION
from tests.agents import exists, flex
from tests.chaos.expected_state import OURS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.chaos.attempts import Tried

HOME = "/var/lib/aks-flex-node"
LAST_WORDS = "hostname; tail -n 40 /var/log/aks-flex-node/agent.log; journalctl -n 20 --no-pager -u aks-flex-node-job"
UNFINISHED = ("next-config.json", "update-journal.json", "config-journal.json", "failed-config.json")


def settle(nodes: Sequence[Tried], seconds: float) -> None:
    """Waits until all nodes have their desired state; fails with the differences after the timeout."""
    end = time.monotonic() + seconds
    while found := {it.name: told for it in nodes if (told := wrong(it))}:
        if time.monotonic() > end:
            words = [it.shell(LAST_WORDS) for it in nodes if it.name in found]
            raise AssertionError("\n".join([f"not within {seconds:.0f} s:", str(found), *words]))
        time.sleep(1)


def wrong(it: Tried) -> list[str]:
    """Checks the cheapest sources first, and stops at the first that reports a difference."""
    return at_the_provider(it) or in_the_cluster(it) or on_the_machine(it)


def at_the_provider(it: Tried) -> list[str]:
    known = it.managed.provider.get(it.name)
    status = known["status"]
    conditions = {one["type"]: one for one in status["conditions"]}
    told = {name: conditions.get(name, {}).get("status") for name in ("Ready", "ConfigApplied", "Drifted")}
    pairs = {
        "conditions": (told, {"Ready": "True", "ConfigApplied": "True", "Drifted": "False"}),
        "appliedConfigVersion": (status.get("appliedConfigVersion"), known["configVersion"]),
    }
    return [f"{one}; {conditions.get('ConfigApplied')}, {conditions.get('Drifted')}" for one in _differing(pairs)]


def in_the_cluster(it: Tried) -> list[str]:
    node, wanted = it.managed.node(), it.wanted
    if node is None:
        return ["there is no Node"]
    info, configz = node["status"]["nodeInfo"], _configz(it)
    labels = {key: value for key, value in node["metadata"]["labels"].items() if key.startswith(OURS)}
    taints = [one for one in node["spec"].get("taints", []) if one["key"].startswith(OURS)]
    ready = {one["type"]: one["status"] for one in node["status"]["conditions"]}["Ready"]
    pairs = {
        "labels": (labels, dict(wanted.labels)),
        "taints": (_sorted(taints), _sorted(wanted.node_taints)),
        "pods": (node["status"]["capacity"]["pods"], str(wanted.max_pods)),
        "the kubelet's maxPods": (configz.get("maxPods"), wanted.max_pods),
        "the kubelet's podPidsLimit": (configz.get("podPidsLimit"), wanted.pod_pids),
        "kubelet": (info["kubeletVersion"], f"v{wanted.versions['kubernetes']}"),
        "runtime": (info["containerRuntimeVersion"], f"containerd://{wanted.versions['containerd']}"),
        "Ready": (ready, "True"),
        "unschedulable": (node["spec"].get("unschedulable", False), False),
        "our cordon": (node["metadata"].get("annotations", {}).get(CORDONED_ANNOTATION), None),
    }
    return _differing(pairs)


def on_the_machine(it: Tried) -> list[str]:
    known = it.managed.provider.get(it.name)
    kept = json.loads(it.shell(f"cat {HOME}/current-config.json"))
    secret = kept["config"]["azure"]["servicePrincipal"].pop("clientSecret")
    kept["config"]["azure"].pop("bootstrapToken", None)
    verified = flex(it.machine, "verify", check=False)
    left = [name for name in UNFINISHED if exists(it.machine, f"{HOME}/{name}")]
    pairs = {
        "runc": (it.shell("runc --version | head -n1").rpartition(" ")[2], it.wanted.versions["runc"]),
        "current-config.json": (kept, {"config": known["config"], "configVersion": known["configVersion"]}),
        "the newest secret is in use": (secret == it.wanted.secret, True),
        "left over": (left, []),
        "verify": (verified.code, 0),
    }
    return [f"{one} {verified.out if one.startswith('verify') else ''}" for one in _differing(pairs)]


def _configz(it: Tried) -> dict[str, Any]:
    """Returns the configuration of the running kubelet."""
    answer = it.managed.lab.cluster.run("get", "--raw", f"/api/v1/nodes/{it.name}/proxy/configz", check=False)
    found: dict[str, Any] = json.loads(answer.out)["kubeletconfig"] if answer.ok else {}
    return found


def _sorted(taints: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    return sorted(taints, key=lambda one: one["key"])


def _differing(pairs: Mapping[str, tuple[Any, Any]]) -> list[str]:
    return [f"{name}: {found!r} instead of {wanted!r}" for name, (found, wanted) in pairs.items() if found != wanted]
