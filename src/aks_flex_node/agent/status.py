"""Collects the status of this node: phase, Arc, VPN, Node, versions, services, certificate, daemon, drift, events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from aks_flex_node.agent import certificates, context, event_log, self_update, staging_config
from aks_flex_node.agent.cluster import nodes
from aks_flex_node.agent.cluster.client import ApiClient, ApiStatusError, node_api
from aks_flex_node.agent.config.resolved import kubelet_auth, kubelet_credential_file, log_file
from aks_flex_node.agent.config_sources.selection import describe_source
from aks_flex_node.agent.daemon import daemon_state
from aks_flex_node.agent.drift.detection import Drift, detect_drift
from aks_flex_node.agent.job_records import job_result, update_journal
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult
from aks_flex_node.agent.machine import UNIT_FILE, identify_machine
from aks_flex_node.agent.paths import DAEMON_LOCK, DAEMON_STATE
from aks_flex_node.agent.policy import read_policy
from aks_flex_node.agent.provider.poll_result import ProviderState
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.lock import is_held
from aks_flex_node.agent.stored_config import ConfigVersions
from aks_flex_node.agent.vpn import local_state as vpn
from aks_flex_node.errors import ClusterError
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aks_flex_node.agent.cluster.nodes import ClusterNode
    from aks_flex_node.agent.daemon.daemon_state import DaemonState
    from aks_flex_node.agent.job_records.update_journal import FailedUpdate
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import Host, UnitState
    from aks_flex_node.settings.models import NodeConfig

Document = dict[str, Any]

DAYS_LEFT = 3  # the kubelet renews its certificate much earlier
TUNNEL_DAYS_LEFT = 14  # the daemon renews the VPN certificate much earlier, if it may
HEALTHY_STATES = frozenset(("disabled", "Connected"))  # of Azure Arc and the VPN
SERVICES = ("containerd", "kubelet", "node-problem-detector")
ON_ANOTHER_MACHINE = "OnAnotherMachine"  # status of a Node that another machine runs
UNIT_NAME = UNIT_FILE.rpartition("/")[2]
RUNNING_STATES = frozenset(("running", "active", "activating", "reloading"))  # of the daemon
# The provider states that need an operator. A node works while its provider is unreachable or fails for a time.
FAILED_PROVIDER_STATES = frozenset(
    state.value
    for state in (
        ProviderState.SIGN_IN_FAILED,
        ProviderState.FORBIDDEN,
        ProviderState.UNTRUSTED,
        ProviderState.BAD_CONFIGURATION,
        ProviderState.NO_CLUSTER,
        ProviderState.NODE_NOT_KNOWN,
        ProviderState.REPLACED,
        ProviderState.ON_ANOTHER_MACHINE,
        ProviderState.KEY_REVOKED,
        ProviderState.AGENT_FAILING,
    )
)


@frozen
class ObservedNode:
    """What is expensive to observe. The daemon knows it from its own checks."""

    node: Document  # of `node_status`
    drift: Sequence[Drift] | None  # None if unknown: a machine that is not a node has no desired state
    arc: Document
    services: list[UnitState]  # of `SERVICES`


def status(engine: Engine, api: ApiClient | None = None) -> Document:
    state = node_state.load(engine.host, engine.config)
    known_well = state.phase is node_state.Phase.NODE_JOINED and engine.config_complete
    found = ObservedNode(
        node_status(engine, api),
        detect_drift(engine, self_update.compared_components(engine)) if known_well else None,
        arc_status(engine),
        [engine.host.unit(f"{name}.service") for name in SERVICES],
    )
    return {**collect_status(engine, found), "events": event_log.read_last(log_file(engine.config), 5)}


def arc_status(engine: Engine) -> Document:
    from aks_flex_node.agent.arc import machine_agent  # the daemon of a node without Azure Arc does not load it

    return machine_agent.status(engine.host, engine.config)


def collect_status(engine: Engine, observed: ObservedNode) -> Document:
    """Returns the status without the events of the log."""
    config, drift = engine.config, observed.drift
    client_certificate = f"{config.paths.kubernetes.kubelet_dir}/pki/kubelet-client-current.pem"
    state = node_state.load(engine.host, config)
    return {
        "timestamp": format_utc(),
        "phase": state.phase.value,
        "error": {"name": state.error, "message": state.message, "step": state.step} if state.error else None,
        "arc": observed.arc,
        "vpn": vpn.status(engine.host, config),
        "node": {**observed.node, "auth": kubelet_auth(config)},
        "versions": installed_versions(engine),
        "services": {
            unit.name.removesuffix(".service"): {
                "active": unit.active,
                "enabled": unit.enabled,
                "restarts": unit.restarts,
            }
            for unit in observed.services
        },
        "certificate": certificates.describe_expiry(engine.host, client_certificate),
        "daemon": daemon_status(engine),
        "drift": None if drift is None else [f"{one.component}: {one.description}" for one in drift],
        "damaged": None if drift is None else [one.description for one in drift if one.damage],
    }


def daemon_status(engine: Engine) -> Document | None:
    """Returns the state of the daemon, or None when this machine has no daemon."""
    host = engine.host
    known = daemon_state.read(host)
    if host.stat(DAEMON_STATE) is None and host.stat(UNIT_FILE) is None:
        return None
    agent = "running" if is_held(DAEMON_LOCK) else host.unit(UNIT_NAME).active
    versions = ConfigVersions(host)
    outcome, failed = job_result.RESULT.read(host), update_journal.FAILURE.read(host)
    pending = versions.next
    return {
        "agent": agent,
        "source": describe_source(engine.config, context.node_name(engine)).as_document(),
        **provider_status(known, agent),
        "since": known.since,
        "lastPoll": known.last_answer,
        "configVersion": versions.current,
        "pending": _pending_update(pending, outcome, failed, known.unapplied) if pending else None,
        "staging": _staging(host, engine.config),
        "credentials": known.credentials_problem or None,
        "lastJob": msgspec.to_builtins(outcome),
        "driftFound": known.drift_count,
        "agentUpdate": self_update.failure_reason(host, engine.config) or None,
        "policy": policy.describe() if (policy := read_policy(host)).exists else None,
    }


def provider_status(known: DaemonState, agent: str) -> dict[str, str]:
    """Returns the provider state and its message. A daemon that does not run has no state: what it stored is old."""
    if agent in RUNNING_STATES:
        return {"providerState": known.provider_state.value, "message": known.message}
    last = f" The last response of the provider was at {known.last_answer}." if known.last_answer else ""
    return {"providerState": "Unknown", "message": f"The daemon is not running.{last}"}


def _pending_update(
    version: str, result: JobResult | None, failed: FailedUpdate | None, unapplied: Mapping[str, str]
) -> dict[str, str]:
    """Returns the version that is not yet in effect, with reason and message."""
    reason, message = "InProgress", "Applying the configuration."
    if failed and failed.version == version:
        reason, message = failed.reason, failed.message
    elif result and result.kind is JobKind.UPDATE and result.version == version:
        reason, message = result.reason, result.message
    elif unapplied.get("version") == version:  # another job has run since
        reason, message = unapplied["reason"], unapplied["message"]
    return {"configVersion": version, "reason": reason, "message": message}


def _staging(host: Host, config: NodeConfig) -> Document | None:
    """Returns the next configuration of the provider and whether its artifacts are on this machine, or None."""
    found, last = staging_config.read_status(host, config), job_result.STAGING.read(host)
    if not found.pool_revision:
        return None
    is_last = last is not None and last.version == found.identity and not last.is_done
    message = last.message if last and is_last and not found.is_complete else ""
    return {"poolRevision": found.pool_revision, "staged": found.is_complete, "message": message}


def node_status(engine: Engine, api: ApiClient | None = None) -> Document:
    """Returns the status of this node's Node object in the cluster."""
    config, name = engine.config, context.node_name(engine)
    found: Document = {"name": name, "status": "NotJoined"}
    if engine.host.stat(kubelet_credential_file(config)) is None:
        return found
    if not (api or config.node.kubelet.server_url):
        return {**found, "status": "Unknown", "message": "node.kubelet.serverURL is not set."}
    try:
        seen = nodes.find(api or node_api(config), name)
    except (ClusterError, ApiStatusError) as error:
        return {**found, "status": "Unknown", "message": str(error)}
    return {**found, "status": "NotRegistered"} if seen is None else describe_node(engine.host, name, seen)


def describe_node(host: Host, name: str, seen: ClusterNode) -> Document:
    machine = identify_machine(host, None)
    if machine and seen.lives_elsewhere(machine.id):
        message = (
            f"Node {name} lives on another machine ({seen.address or 'unknown address'}). Run `aks-flex-node "
            "unbootstrap` on the machine that is not to be this node."
        )
        return {"name": name, "status": ON_ANOTHER_MACHINE, "message": message}
    return {
        "name": name,
        "status": "Ready" if seen.ready else "NotReady",
        "message": seen.message,
        "podCIDR": seen.pod_cidr,
        "schedulable": not seen.cordoned,
        "conditions": dict(seen.conditions),
    }


def installed_versions(engine: Engine) -> dict[str, str]:
    """Returns the installed versions by component, read from the targets of links."""
    paths = engine.config.paths
    links = {
        "kubernetes": f"{paths.bin_dir}/kubelet",
        "containerd": f"{paths.bin_dir}/containerd",
        "runc": f"{paths.sbin_dir}/runc",
        "cni": f"{paths.cni.bin_dir}/bridge",
        "npd": f"{paths.bin_dir}/node-problem-detector",
    }
    entries = {name: engine.host.stat(path) for name, path in links.items()}
    prefix = f"{paths.install_dir}/"
    return {
        name: entry.target.removeprefix(prefix).split("/")[1]
        for name, entry in entries.items()
        if entry and entry.target.startswith(prefix)
    }


def health_problems(found: Document) -> list[str]:
    """Returns the problems of a node, one phrase each; empty when the node is healthy."""
    wrong = []
    if found["phase"] != node_state.Phase.NODE_JOINED.value:
        wrong.append(f"the machine is in phase {found['phase']}, not NodeJoined")
    if found["node"]["status"] != "Ready":
        node = found["node"]
        elsewhere = node["status"] == ON_ANOTHER_MACHINE
        wrong.append(node["message"] if elsewhere else f"node {node['name']} is {node['status']}")
    for name, unit in found["services"].items():
        if unit["active"] != "active" and (name != "node-problem-detector" or unit["enabled"]):
            wrong.append(f"{name} is {unit['active']}")
        elif unit["active"] == "active" and not unit["enabled"]:
            wrong.append(f"{name} is disabled and will not start at boot")
    for name, what in (("arc", "Azure Arc"), ("vpn", "the VPN")):
        if found[name]["status"] not in HEALTHY_STATES:
            wrong.append(f"{what} is {found[name]['status']}")
    wrong += daemon_problems(found.get("daemon"))
    wrong += found["damaged"] or ()
    wrong += _certificate_problems("the node's certificate", found["certificate"], DAYS_LEFT)
    wrong += _certificate_problems("the VPN certificate", found["vpn"].get("certificate"), TUNNEL_DAYS_LEFT)
    return wrong


def daemon_problems(found: Document | None) -> list[str]:
    """Returns why the daemon does not do its work, with the remedy. A node without a daemon has no such problem."""
    if found is None:
        return []
    if found["agent"] not in RUNNING_STATES:
        return [
            f"the daemon is {found['agent']}, so nothing manages this node: run `sudo systemctl start aks-flex-node`"
        ]
    state = found["providerState"]
    if state in FAILED_PROVIDER_STATES:
        cause = f"{state}: {found['message']}".rstrip(":. ")
        who = "pool" if (found.get("source") or {}).get("kind") == "aksPool" else "provider"
        return [f"the {who} does not manage this node: {cause}. Run `aks-flex-node explain {state}`"]
    return []


def _certificate_problems(what: str, end: Document | None, days: int) -> list[str]:
    if end is None or end["days"] >= days:
        return []
    if end["days"] <= 0:
        return [f"{what} expired at {end['expires']}"]
    return [f"{what} expires at {end['expires']} and was not renewed"]
