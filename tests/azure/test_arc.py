"""Tests of Azure Arc on a lab machine: package, services, token and complete removal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from aks_flex_lab import network, node_agent
from aks_flex_lab.arm.eventual_consistency import EventualConsistency
from aks_flex_lab.arm.managed_clusters import SUBSCRIPTION_ID
from aks_flex_lab.components.resource_provider import CLUSTER_ID, RESOURCE_GROUP_ID
from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_node.azure.roles import CLUSTER_USER, RBAC_CLUSTER_ADMIN
from tests.agents import exists, flex
from tests.lab_azure import arc_machine, differences_but_copies, roles_of, sort_packages
from tests.lab_machines import temporary_machine
from tests.remedies.catalogue import command
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

OWNER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635"
ONBOARDING = "b64e21ea-ac4e-4cdf-9dc9-5b892992bee7"
CREDENTIAL = """
import os, sys
sys.path.insert(0, "/usr/lib/aks-flex-node")
from azure.identity import ManagedIdentityCredential
print(ManagedIdentityCredential().get_token(sys.argv[1]).token)
"""
# Searches every process for the prefix of a token and for the operator's secret, until it is stopped.
SPY = """
import os, time
words, seen, end = (b"eyJ" + b"hbGci", b"eyJ" + b"0eXAi", b"operators-" + b"secret"), {"looked"}, time.time() + 120
while not os.path.exists("/run/spy-ends") and time.time() < end:
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) != os.getpid():
            for kind in ("cmdline", "environ"):
                try:
                    text = open(f"/proc/{pid}/{kind}", "rb").read()
                except OSError:
                    continue
                if any(word in text for word in words):
                    seen.add(f"{kind} of {pid}: {text[:60]}")
print("\\n".join(sorted(seen)))
"""
HIMDS = "http://127.0.0.1:40342"
# Locks dpkg as apt does.
LOCK = """
import fcntl, time
file = open("/var/lib/dpkg/lock-frontend", "w")
fcntl.lockf(file, fcntl.LOCK_EX)
open("/run/locked", "w").close()
time.sleep(600)
"""


@pytest.fixture(scope="module")
def edge(lab: Lab) -> Iterator[EdgeMachine]:
    with temporary_machine(lab, "arc-edge") as machine:
        node_agent.install(machine)
        sort_packages(machine)
        yield machine


@pytest.fixture(scope="module")
def operator(lab: Lab) -> EntraPrincipal:
    principal = lab.azure.directory.service_principal("arc-operator", "operators-secret")
    lab.azure.assignments.put(RESOURCE_GROUP_ID, OWNER, principal.object_id)
    return principal


@pytest.fixture
def machine(lab: Lab, edge: EdgeMachine, operator: EntraPrincipal) -> Iterator[EdgeMachine]:
    """Yields a machine configured for Arc, and cleans it up afterwards."""
    write_config(lab, edge, operator)
    yield edge
    EventualConsistency(lab.azure.state).change(principal_seconds=1.0, assignment_seconds=2.0, throttled=0)
    write_config(lab, edge, operator)
    flex(edge, "arc", "unregister", "--yes")
    flex(edge, "unbootstrap", "--yes")


def write_config(lab: Lab, machine: EdgeMachine, operator: EntraPrincipal, **arc: Any) -> None:
    package = {"keyFingerprints": [lab.azcmagent_repository.fingerprint], **arc.pop("package", {})}
    document = {
        "azure": {
            "subscriptionId": SUBSCRIPTION_ID,
            "tenantId": TENANT_ID,
            "resourceGroup": RESOURCE_GROUP_ID.rpartition("/")[2],
            "location": "westeurope",
            "resourceManager": "https://management.flex.internal",
            "authorityHost": "https://login.flex.internal",
            "servicePrincipal": {"clientId": operator.client_id, "clientSecret": "operators-secret"},
            "targetCluster": {"resourceId": CLUSTER_ID},
            "arc": {
                "enabled": True,
                "autoRoleAssignment": True,
                "tags": {"site": "one"},
                "package": package,
                **arc,
            },
        }
    }
    node_agent.write_configuration(machine, document)


def facts(machine: EdgeMachine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(flex(machine, "arc", "status", "--json", check=False).out)
    return found


def failure(machine: EdgeMachine, name: str) -> str:
    done = flex(machine, "arc", "register", check=False)
    assert done.code != 0
    assert f"\n       {name}" in done.err, done.err
    return done.err


def test_arc_register_assigns_roles_and_unregister_removes_all_traces(
    lab: Lab, machine: EdgeMachine, operator: EntraPrincipal
) -> None:
    machine.run("rm", "-r", "/etc/aks-flex-node")
    before = machine.snapshot()
    write_config(lab, machine, operator)

    flex(machine, "arc", "register")

    there = arc_machine(lab, machine)
    assert there
    assert there["tags"] == {"site": "one"}
    assert roles_of(lab, there["identity"]["principalId"]) == sorted(
        role.id for role in (CLUSTER_USER, RBAC_CLUSTER_ADMIN)
    )
    told = facts(machine)
    assert (told["status"], told["resourceId"]) == ("Connected", there["id"])
    assert told["services"] == {"himdsd.service": "active", "gcad.service": "active", "extd.service": "active"}
    assert not exists(machine, "/run/aks-flex-node-arc.json")

    flex(machine, "arc", "unregister", "--yes")
    flex(machine, "unbootstrap", "--yes")
    machine.run("rm", "-rf", "/etc/aks-flex-node")
    assert arc_machine(lab, machine) is None
    assert roles_of(lab, there["identity"]["principalId"]) == []
    assert differences_but_copies(before, machine) == []


def test_azure_identity_gets_token_from_arc_endpoint(lab: Lab, machine: EdgeMachine) -> None:
    flex(machine, "arc", "register")
    there = arc_machine(lab, machine)
    assert there
    env = (f"IDENTITY_ENDPOINT={HIMDS}/metadata/identity/oauth2/token", f"IMDS_ENDPOINT={HIMDS}")
    token = machine.run("env", *env, "python3", "-I", "-c", CREDENTIAL, "https://x.example/.default").out.strip()
    claims = jwt.decode(token, options={"verify_signature": False})
    assert (claims["oid"], claims["xms_mirid"]) == (there["identity"]["principalId"], there["id"])
    assert claims["aud"] == "https://x.example"
    asked = ("curl", "-s", "-H", "Metadata: true")
    instance = json.loads(machine.run(*asked, f"{HIMDS}/metadata/instance?api-version=2020-06-01").out)
    assert instance["compute"]["resourceId"] == there["id"]
    url = f"{HIMDS}/metadata/identity/oauth2/token?api-version=2020-06-01&resource=https://x.example"
    head = machine.run(*asked, "-D", "-", "-o", "/dev/null", url).out
    key = head.partition("Basic realm=")[2].split()[0]
    assert machine.run("stat", "-c", "%a %U:%G", key).out.strip() == "640 himds:himds"
    words = (
        *asked,
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "-H",
        f"Authorization: Basic {machine.run('cat', key).out}",
    )
    assert [machine.run(*words, url).out for _ in range(2)] == ["200", "401"]  # a key is valid once


def sign_in(machine: EdgeMachine, *before: str) -> str:
    """Signs in as the machine, as the daemon does; returns the name of the error, or `signed in`."""
    config = machine.run("cat", node_agent.CONFIG_PATH).out
    told = json.loads(machine.run(*before, "aks-flex-node", "azure-token", input=config).out)
    return str(told["error"]["name"]) if "error" in told else "signed in"


@pytest.mark.remedy("arc-agent-unavailable", "arc-identity-rejected")
def test_machine_signs_in_after_the_remedy_of_each_refusal(machine: EdgeMachine) -> None:
    flex(machine, "arc", "register")
    machine.run("systemctl", "stop", "himdsd")
    assert sign_in(machine) == "arc-agent-unavailable"
    machine.run(*command("arc-agent-unavailable", "systemctl start"))
    until(lambda: sign_in(machine) == "signed in", "the Azure Arc agent responds")

    nobody = ("setpriv", "--reuid=nobody", "--regid=nogroup")
    assert sign_in(machine, *nobody, "--clear-groups") == "arc-key-unreadable"
    assert sign_in(machine) == "signed in"
    assert sign_in(machine, *nobody, "--groups=himds") == "signed in"

    machine.run("azcmagent", "disconnect", "--force-local-only")
    assert sign_in(machine) == "arc-identity-rejected"
    machine.run(*command("arc-identity-rejected", "aks-flex-node arc register"))
    assert sign_in(machine) == "signed in"


@pytest.mark.parametrize(
    ("package", "name", "words"),
    [
        (lambda lab: {"keyURL": lab.azcmagent_repository.other_key_url}, "package-key-mismatch", "fingerprint is"),
        (
            lambda lab: {"repository": lab.azcmagent_repository.unsigned, "suite": "stable"},
            "arc-package-failed",
            "not signed",
        ),
        (
            lambda lab: {
                "keyURL": lab.azcmagent_repository.other_key_url,
                "keyFingerprints": [lab.azcmagent_repository.other_fingerprint],
            },
            "arc-package-failed",
            "",
        ),
        (lambda _: {"repository": "https://packages.microsoft.com/nowhere"}, "arc-package-failed", ""),
        (lambda _: {"install": False}, "azcmagent-not-found", ""),
    ],
)
def test_arc_package_not_signed_by_expected_key_is_not_installed(
    lab: Lab,
    machine: EdgeMachine,
    operator: EntraPrincipal,
    package: Callable[[Lab], dict[str, Any]],
    name: str,
    words: str,
) -> None:
    write_config(lab, machine, operator, package=package(lab))
    assert words in failure(machine, name)
    assert not machine.run("dpkg", "-s", "azcmagent", check=False).ok
    assert not exists(machine, "/var/lib/aks-flex-node-packages")


def test_stopped_himds_is_started_and_masked_himds_is_reported(
    lab: Lab, machine: EdgeMachine, operator: EntraPrincipal
) -> None:
    flex(machine, "arc", "register")
    machine.run("systemctl", "stop", "himdsd")
    write_config(lab, machine, operator, tags={"site": "two"})
    flex(machine, "arc", "register")
    assert facts(machine)["services"]["himdsd.service"] == "active"
    there = arc_machine(lab, machine)
    assert there
    assert there["tags"] == {"site": "two"}
    machine.run("systemctl", "mask", "--runtime", "--now", "himdsd")
    write_config(lab, machine, operator, tags={"site": "three"})
    try:
        assert "himdsd" in failure(machine, "himds-unavailable")
    finally:
        machine.run("systemctl", "unmask", "--runtime", "himdsd")


def test_forbidden_role_assignment_names_role_scope_and_command(lab: Lab, machine: EdgeMachine) -> None:
    poor = lab.azure.directory.service_principal("onboarding", "operators-secret")
    lab.azure.assignments.put(RESOURCE_GROUP_ID, ONBOARDING, poor.object_id)
    write_config(lab, machine, poor)
    said = failure(machine, "role-assignment-forbidden")
    assert "Azure Kubernetes Service Cluster User Role" in said
    assert CLUSTER_ID in said
    assert "az role assignment create" in said


@pytest.mark.long
def test_arc_register_waits_for_delayed_roles_and_retries_throttling(lab: Lab, machine: EdgeMachine) -> None:
    EventualConsistency(lab.azure.state).change(principal_seconds=3.0, assignment_seconds=8.0, throttled=3)
    said = flex(machine, "arc", "register").err
    assert "does not know the machine's identity yet" in said
    assert "waiting for the role assignments to take effect" in said


@pytest.mark.parametrize("command", ["register", "unregister"])
def test_killed_arc_command_completes_on_next_run(lab: Lab, machine: EdgeMachine, command: str) -> None:
    words = ("arc", command, *(("--yes",) if command == "unregister" else ()))
    if command == "unregister":
        flex(machine, "arc", "register")
    for tenths in (6, 7, 8, 9, 10, 12):
        machine.run("timeout", "-s", "KILL", f"{tenths / 10}", "aks-flex-node", *words, check=False)
    flex(machine, *words)
    if command == "unregister":
        assert not machine.run("dpkg", "-s", "azcmagent", check=False).ok
        assert not machine.run("getent", "passwd", "himds", check=False).ok
        assert arc_machine(lab, machine) is None
    else:
        assert facts(machine)["status"] == "Connected"
    assert not machine.run("ls", "/run/aks-flex-node-arc.json", "/var/lib/aks-flex-node-packages", check=False).out


def test_process_list_never_shows_token_or_secret(machine: EdgeMachine) -> None:
    machine.run("sh", "-c", "rm -f /run/spy-ends; cat >/run/spy.py", input=SPY)
    machine.run("systemd-run", "--unit=spy", "-p", "StandardOutput=file:/run/spied", "python3", "/run/spy.py")
    flex(machine, "arc", "register")
    flex(machine, "arc", "unregister", "--yes")
    machine.run("touch", "/run/spy-ends")
    until(lambda: not machine.run("systemctl", "is-active", "-q", "spy", check=False).ok, "the spy ends")
    assert machine.run("cat", "/run/spied").out.strip() == "looked"
    machine.run("rm", "/run/spy-ends", "/run/spy.py", "/run/spied")


def test_arc_register_is_refused_when_connected_as_another_machine(
    lab: Lab, machine: EdgeMachine, operator: EntraPrincipal
) -> None:
    flex(machine, "arc", "register")
    write_config(lab, machine, operator, machineName="another")
    assert machine.name in failure(machine, "arc-connected-elsewhere")
    assert facts(machine)["machine"] == machine.name
    write_config(lab, machine, operator)


@pytest.mark.long
def test_offline_unregister_clears_machine_and_lists_azure_cleanup(lab: Lab, machine: EdgeMachine) -> None:
    flex(machine, "arc", "register")
    there = arc_machine(lab, machine)
    assigned = json.loads(machine.run("cat", "/var/lib/aks-flex-node/arc.json").out)["assignments"]
    assert there
    assert assigned
    machine.run("ip", "route", "add", "unreachable", network.AZURE)
    try:
        said = flex(machine, "arc", "unregister", "--yes").err
    finally:
        machine.run("ip", "route", "del", "unreachable", network.AZURE)
    for each in assigned:
        assert f"az role assignment delete --ids {each}" in said
    assert f"az resource delete --ids {there['id']}" in said
    assert not machine.run("dpkg", "-s", "azcmagent", check=False).ok
    assert arc_machine(lab, machine)


def test_arc_register_waits_for_dpkg_lock(machine: EdgeMachine) -> None:
    machine.run("systemd-run", "--unit=busy", "python3", "-c", LOCK)
    until(lambda: exists(machine, "/run/locked"), "dpkg is locked")
    machine.run(
        "systemd-run",
        "--unit=later",
        "--on-active=3",
        "--timer-property=AccuracySec=100ms",
        "systemctl",
        "stop",
        "busy",
    )
    flex(machine, "arc", "register")
    machine.run("rm", "/run/locked")
    assert facts(machine)["status"] == "Connected"
