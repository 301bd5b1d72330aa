"""Tests of the status data, and of a support bundle without secrets."""

from __future__ import annotations

import datetime
import hashlib
import json
import stat
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node import error_catalog
from aks_flex_node.agent import status, support_bundle
from aks_flex_node.agent.cli.status_commands import daemon_lines, drift_summary
from aks_flex_node.agent.cluster.client import ApiClient, ApiStatusError
from aks_flex_node.agent.machine import UNIT_FILE
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import NodeState, Phase
from aks_flex_node.agent.reconcile.program_stager import staging_folder
from aks_flex_node.errors import ClusterError
from aks_flex_node.host.actions import MakeLink, WriteFile
from aks_flex_node.host.host import CommandResult, UnitState
from tests.client_certificates import UTC, client_pem
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import DATA, Answers, config_of, empty_host, engine_on
from tests.unit.agent.config.builders import TOKEN, Settings

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.agent.reconcile.engine import Engine

CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"
CANARY = "canary-8Q~never-to-be-seen"
DOCUMENT: dict[str, Any] = {
    "metadata": {"name": "edge-1"},
    "spec": {"podCIDR": "10.0.0.0/24"},
    "status": {"conditions": [{"type": "Ready", "status": "True", "message": "well"}]},
}


def engine_with(tmp_path: Path, host: RecordedHost | None = None, values: Settings | None = None) -> Engine:
    given = {"agent.logFile": str(tmp_path / "agent.log"), **(values or {})}
    return engine_on(host or empty_host(), config_of(given))


def api_of(answer: Any) -> ApiClient:
    return Answers({("GET", "/api/v1/nodes/edge-1"): [answer]}).client


def test_machine_that_has_not_joined_has_a_complete_status(tmp_path: Path) -> None:
    found = status.status(engine_with(tmp_path))
    assert found["arc"] == found["vpn"] == {"status": "disabled"}
    assert found["node"] == {"name": "edge-1", "status": "NotJoined", "auth": "bootstrapToken"}
    datetime.datetime.strptime(found["timestamp"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert (found["phase"], found["error"], found["certificate"], found["drift"]) == ("NotStarted", None, None, None)
    json.dumps(found)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (DOCUMENT, "Ready"),
        ({"metadata": {"name": "edge-1"}}, "NotReady"),
        (ApiStatusError(404, "", ""), "NotRegistered"),
        (ApiStatusError(500, "", "it broke"), "Unknown"),
        (ClusterError("api-server-unreachable", "It cannot be reached."), "Unknown"),
    ],
    ids=str,
)
def test_node_status_reflects_the_cluster_response(tmp_path: Path, answer: Any, expected: str) -> None:
    host = RecordedHost({CERTIFICATE: "PEM"})
    assert status.node_status(engine_with(tmp_path, host), api_of(answer))["status"] == expected


def test_node_status_without_an_api_server_in_the_configuration_is_unknown(tmp_path: Path) -> None:
    engine = engine_with(tmp_path, RecordedHost({CERTIFICATE: "PEM"}), {"node.kubelet.serverURL": ""})
    assert status.node_status(engine)["message"] == "node.kubelet.serverURL is not set."


def test_node_of_another_machine_is_not_healthy(tmp_path: Path) -> None:
    host = RecordedHost({CERTIFICATE: "PEM", "/etc/machine-id": "0" * 31 + "1\n"})
    document = {**DOCUMENT, "status": {**DOCUMENT["status"], "nodeInfo": {"machineID": "0" * 31 + "2"}}}

    node = status.node_status(engine_with(tmp_path, host), api_of(document))

    assert node["status"] == "OnAnotherMachine"
    (problem,) = status.health_problems({**WELL, "node": node})
    assert "lives on another machine" in problem
    assert "`aks-flex-node unbootstrap`" in problem


def test_status_contains_last_error_versions_services_and_certificate(tmp_path: Path) -> None:
    end = datetime.datetime.now(UTC).replace(microsecond=0) + datetime.timedelta(days=10)
    units = {"kubelet.service": UnitState("kubelet.service", enabled=True, active="failed", restarts=7)}
    host = RecordedHost({CERTIFICATE: client_pem(end), "/usr/local/bin/containerd": "theirs"}, units=units)
    host.apply(MakeLink("/usr/local/bin/kubelet", "/opt/aks-flex-node/kubernetes/1.34.4/bin/kubelet"))
    host.apply(MakeLink("/usr/local/sbin/runc", "/usr/sbin/runc"))
    node_state.write(
        host,
        f"{DATA}/state.json",
        NodeState().with_phase(Phase.NODE_FAILED, step="cni", error="disk-full", message="m"),
    )
    found = status.status(engine_with(tmp_path, host), api_of(DOCUMENT))
    assert found["error"] == {"name": "disk-full", "message": "m", "step": "cni"}
    assert found["versions"] == {"kubernetes": "1.34.4"}
    assert found["services"]["kubelet"] == {"active": "failed", "enabled": True, "restarts": 7}
    assert found["certificate"]["expires"] == end.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert 9.9 <= found["certificate"]["days"] <= 10


def test_status_lists_drift_of_a_joined_node(tmp_path: Path) -> None:
    host = empty_host()
    node_state.write(host, f"{DATA}/state.json", NodeState().with_phase(Phase.NODE_JOINED))
    found = status.status(engine_with(tmp_path, host))
    assert "kubelet: kubelet.service is inactive" in found["drift"]
    assert len(found["drift"]) == len(set(found["drift"]))
    wrong = status.health_problems(found)
    program = next(line for line in wrong if line.startswith("/opt/aks-flex-node/kubernetes/"))
    assert program.endswith(" is damaged: not installed")
    assert "/usr/local/bin/kubelet is missing" in wrong


WELL: dict[str, Any] = {
    "phase": "NodeJoined",
    "node": {"name": "edge-1", "status": "Ready"},
    "arc": {"status": "disabled"},
    "vpn": {"status": "Connected"},
    "services": {
        "containerd": {"active": "active", "enabled": True},
        "kubelet": {"active": "active", "enabled": True},
        "node-problem-detector": {"active": "inactive", "enabled": False},
    },
    "certificate": {"expires": "2030", "days": 9},
    "damaged": [],
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"certificate": None}, []),
        ({"phase": "NodeFailed"}, ["the machine is in phase NodeFailed, not NodeJoined"]),
        ({"node": {"name": "edge-1", "status": "Unknown"}}, ["node edge-1 is Unknown"]),
        ({"services": {"kubelet": {"active": "failed", "enabled": True}}}, ["kubelet is failed"]),
        (
            {"services": {"node-problem-detector": {"active": "failed", "enabled": True}}},
            ["node-problem-detector is failed"],
        ),
        (
            {"services": {"kubelet": {"active": "active", "enabled": False}}},
            ["kubelet is disabled and will not start at boot"],
        ),
        ({"damaged": ["the programs at /x are damaged (is empty)"]}, ["the programs at /x are damaged (is empty)"]),
        ({"damaged": None}, []),
        ({"arc": {"status": "Expired"}}, ["Azure Arc is Expired"]),
        ({"vpn": {"status": "Connecting"}}, ["the VPN is Connecting"]),
        (
            {"vpn": {"status": "Connected", "certificate": {"days": 13.0, "expires": "then"}}},
            ["the VPN certificate expires at then and was not renewed"],
        ),
        ({"vpn": {"status": "Connected", "certificate": {"days": 20.0, "expires": "then"}}}, []),
        (
            {"certificate": {"expires": "2030", "days": 2.9}},
            ["the node's certificate expires at 2030 and was not renewed"],
        ),
        ({"certificate": {"expires": "2020", "days": -1}}, ["the node's certificate expired at 2020"]),
    ],
    ids=str,
)
def test_health_problems_are_described_in_sentences(changes: dict[str, Any], expected: list[str]) -> None:
    assert status.health_problems({**WELL, **changes}) == expected


def principal() -> Settings:
    return {"azure.servicePrincipal": {"tenantId": "t", "clientId": "c", "clientSecret": CANARY}}


@pytest.mark.parametrize(
    ("phase", "drift", "said"),
    [
        ("NotStarted", None, "not joined"),
        (
            "NodeJoined",
            None,
            "unknown: the configuration is missing or damaged; run `aks-flex-node verify`, which says what to do",
        ),
        ("NodeJoined", [], "none"),
        ("NodeJoined", ["one"], "1 difference"),
        ("NodeJoined", ["one", "two"], "2 differences"),
    ],
)
def test_drift_is_summarized_in_one_line(phase: str, drift: list[str] | None, said: str) -> None:
    assert drift_summary({"phase": phase, "drift": drift}) == said


def test_support_bundle_contains_no_secrets_and_is_mode_0600(tmp_path: Path) -> None:
    answers = {
        ("ip", "address"): CommandResult(0, f"said {CANARY}"),
        ("systemctl", "status", "--no-pager", "--full", "kubelet"): CommandResult(3, f"--token={TOKEN}"),
    }
    host = RecordedHost({"/etc/containerd/config.toml": f"x = '{CANARY}'"}, answers)
    host.apply(WriteFile("/var/lib/kubelet/config.yaml", f"a: {TOKEN}".encode()))
    bundle = tmp_path / "bundle.tar.gz"
    bundle.write_text("older")
    bundle.chmod(0o644)
    support_bundle.write_bundle(
        engine_with(tmp_path, host, {**principal(), "proxy.http": f"http://me:{CANARY}@proxy:1"}), bundle
    )
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    with tarfile.open(bundle) as archive:
        files = {entry.name: (archive.extractfile(entry) or bundle.open("rb")).read() for entry in archive}
    assert {"aks-flex-node/status.json", "aks-flex-node/journals/kubelet.txt"} <= set(files)
    assert files["aks-flex-node/state.json"] == b"(file does not exist)\n"
    together = b"\n".join(files.values())
    assert CANARY.encode() not in together
    assert TOKEN.encode() not in together
    assert b"said ***" in together


AGENT = "aks-flex-node.service"


def bundle(version: str) -> str:
    return json.dumps({"config": {}, "configVersion": version})


def daemon_status_with(tmp_path: Path, files: dict[str, str] | None = None, active: str = "active") -> dict[str, Any]:
    """Returns the status of the daemon with these files."""
    there = {f"{DATA}/{name}": text for name, text in {"current-config.json": bundle("7"), **(files or {})}.items()}
    units = {AGENT: UnitState(AGENT, exists=True, enabled=True, active=active)}
    found = status.daemon_status(engine_with(tmp_path, RecordedHost({**there, UNIT_FILE: "unit"}, units=units)))
    assert found
    return found


def test_daemon_status_is_none_without_a_daemon(tmp_path: Path) -> None:
    assert status.daemon_status(engine_with(tmp_path)) is None
    shipped = {AGENT: UnitState(AGENT, exists=True)}  # the unit of the package, which the node does not use
    assert status.daemon_status(engine_with(tmp_path, RecordedHost({}, units=shipped))) is None


CONNECTED = json.dumps({"provider_state": "Connected", "last_answer": "2026-01-02T03:04:05Z"})


def test_status_of_a_stopped_daemon_does_not_claim_that_it_is_connected(tmp_path: Path) -> None:
    assert daemon_status_with(tmp_path, {"daemon-state.json": CONNECTED})["providerState"] == "Connected"
    stopped = daemon_status_with(tmp_path, {"daemon-state.json": CONNECTED}, "inactive")
    assert stopped["providerState"] == "Unknown"
    assert stopped["message"] == (
        "The daemon is not running. The last response of the provider was at 2026-01-02T03:04:05Z."
    )


DAEMON: dict[str, Any] = {"agent": "running", "providerState": "Connected", "message": ""}
STOPPED = "the daemon is {}, so nothing manages this node: run `sudo systemctl start aks-flex-node`"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"agent": "activating"}, []),
        ({"agent": "inactive"}, [STOPPED.format("inactive")]),
        ({"agent": "failed", "providerState": "SignInFailed"}, [STOPPED.format("failed")]),
        ({"providerState": "Standalone"}, []),
        ({"providerState": "ProviderUnreachable", "message": "no route"}, []),  # a node works without its provider
        (
            {"providerState": "SignInFailed", "message": "The secret expired."},
            [
                "the provider does not manage this node: SignInFailed: The secret expired. "
                "Run `aks-flex-node explain SignInFailed`"
            ],
        ),
        (
            {"providerState": "Forbidden"},
            ["the provider does not manage this node: Forbidden. Run `aks-flex-node explain Forbidden`"],
        ),
        (
            {"providerState": "NodeKeyRevoked", "message": "The key was revoked. (status 403)"},
            [
                "the provider does not manage this node: NodeKeyRevoked: The key was revoked. (status 403). "
                "Run `aks-flex-node explain NodeKeyRevoked`"
            ],
        ),
    ],
    ids=str,
)
def test_health_fails_when_the_daemon_does_not_manage_the_node(changes: dict[str, Any], expected: list[str]) -> None:
    found = status.health_problems({**WELL, "daemon": {**DAEMON, **changes}})
    assert found == expected


@pytest.mark.parametrize("state", sorted(status.FAILED_PROVIDER_STATES))
def test_remedy_of_a_failed_provider_state_can_be_followed(state: str) -> None:
    (problem,) = status.daemon_problems({**DAEMON, "providerState": state})
    program, command, name = problem.rpartition("Run `")[2].rstrip("`").split()
    assert (program, command) == ("aks-flex-node", "explain")
    assert error_catalog.explain(name, "aks_flex_node")[0]


def test_daemon_status_is_starting_before_the_first_poll(tmp_path: Path) -> None:
    found = daemon_status_with(tmp_path)
    assert (found["agent"], found["providerState"], found["configVersion"]) == ("active", "Starting", "7")
    assert found["pending"] is found["lastJob"] is found["credentials"] is found["agentUpdate"] is None


def test_daemon_status_contains_the_provider_state(tmp_path: Path) -> None:
    notes = {
        "provider_state": "UnexpectedResponse",
        "message": "a login page",
        "since": "s",
        "last_answer": "a",
        "drift_count": 3,
        "credentials_problem": "not yet",
    }
    found = daemon_status_with(tmp_path, {"daemon-state.json": json.dumps(notes)})
    assert (found["providerState"], found["message"], found["since"]) == ("UnexpectedResponse", "a login page", "s")
    assert (found["lastPoll"], found["driftFound"], found["credentials"]) == ("a", 3, "not yet")


WAITS = {"kind": "update", "result": "deferred", "reason": "Paused", "message": "It waits.", "version": "8"}
FAILED = {"version": "8", "fingerprint": "f", "reason": "service-failed", "message": "boom", "at": "t"}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "InProgress"),
        ({"job-result.json": json.dumps(WAITS)}, "Paused"),
        ({"job-result.json": json.dumps({**WAITS, "version": "6"})}, "InProgress"),
        ({"job-result.json": json.dumps({**WAITS, "kind": "repair"})}, "InProgress"),
        ({"job-result.json": json.dumps(WAITS), "failed-config.json": json.dumps(FAILED)}, "service-failed"),
        ({"failed-config.json": json.dumps({**FAILED, "version": "6"})}, "InProgress"),
        ({"job-result.json": "{", "failed-config.json": "[]", "daemon-state.json": "null"}, "InProgress"),
    ],
    ids=str,
)
def test_daemon_status_gives_the_reason_for_a_pending_config(
    tmp_path: Path, files: dict[str, str], reason: str
) -> None:
    waiting = daemon_status_with(tmp_path, {"next-config.json": bundle("8"), **files})["pending"]
    assert (waiting["configVersion"], waiting["reason"]) == ("8", reason)


def test_reason_of_a_pending_config_survives_other_jobs(tmp_path: Path) -> None:
    unapplied = {"version": "8", "reason": "WaitingForNodeDeletion", "message": "Later."}
    repaired = {"kind": "repair", "result": "done"}
    files = {"daemon-state.json": json.dumps({"unapplied": unapplied}), "job-result.json": json.dumps(repaired)}
    waiting = daemon_status_with(tmp_path, {"next-config.json": bundle("8"), **files})["pending"]
    assert (waiting["reason"], waiting["message"]) == ("WaitingForNodeDeletion", "Later.")


POOL = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ContainerService/managedClusters/c/agentPools/edge"


NEXT = json.dumps({"poolRevision": 5, "config": {"node": {"maxPods": 60}}})


def staging_files(tmp_path: Path, **result: str) -> dict[str, str]:
    """Returns a next configuration and the result of the job that staged it."""
    identity = hashlib.sha256(NEXT.encode()).hexdigest()
    outcome = {"kind": "stage", "result": "done", "version": identity, **result}
    folder = staging_folder(engine_with(tmp_path).config).removeprefix(f"{DATA}/")
    record = {f"{folder}/staged.json": json.dumps({"identity": identity, "trees": []})}
    staged = record if outcome["result"] == "done" else {}
    return {"staging-config.json": NEXT, "staging-result.json": json.dumps(outcome), **staged}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({}, "pool revision 5: downloaded and verified, not in effect"),
        ({"result": "failed", "message": "No mirror."}, "pool revision 5: No mirror."),
        ({"result": "failed", "message": "Of another.", "version": "other"}, "pool revision 5: not downloaded yet"),
    ],
)
def test_status_shows_a_staged_revision_in_one_line(tmp_path: Path, result: dict[str, str], text: str) -> None:
    lines = dict(daemon_lines(daemon_status_with(tmp_path, staging_files(tmp_path, **result))))
    assert lines["staged"] == text


def test_daemon_status_lines_match_the_status_data(tmp_path: Path) -> None:
    notes = {"provider_state": "Throttled", "message": "slowly", "credentials_problem": "not yet"}
    files = {"next-config.json": bundle("8"), "job-result.json": json.dumps(WAITS)}
    assert daemon_lines(daemon_status_with(tmp_path, {**files, "daemon-state.json": json.dumps(notes)})) == [
        ("agent", "active"),
        ("provider", "Throttled, configuration 7: slowly"),
        ("source", f"local file {DATA}/current-config.json"),
        ("pending", "configuration 8, Paused: It waits."),
        ("credentials", "not yet"),
    ]
