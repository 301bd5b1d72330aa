"""Tests of the Arc registration: once, with its roles, and completely removable."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.arc import machine_agent
from aks_flex_node.agent.arc.azure_client import with_arc_identity
from aks_flex_node.agent.arc.machine_agent import SETTINGS_FILE
from aks_flex_node.agent.arc.registration_state import ArcRecordStore, cluster_roles, desired_machine
from aks_flex_node.agent.identity.azure_sign_in import identity_kind
from aks_flex_node.azure.arm import AzureCallError, refused_error
from aks_flex_node.azure.role_assignments import assignment_id
from aks_flex_node.azure.roles import (
    CLUSTER_ADMIN,
    CLUSTER_USER,
    FLEX_NODE_AGENT,
    NETWORK_CONTRIBUTOR,
    RBAC_CLUSTER_ADMIN,
    READER,
    AzureRole,
)
from aks_flex_node.errors import ConfigError, FlexError
from aks_flex_node.host.actions import WriteFile
from aks_flex_node.settings.base import replace
from tests.arc_machines import CLUSTER, MACHINE, config
from tests.crash import harness

if TYPE_CHECKING:
    from tests.unit.agent.arc.conftest import Place

ROLES = (CLUSTER_USER, RBAC_CLUSTER_ADMIN)
ASSIGNMENTS = [assignment_id(CLUSTER, role, "principal-1") for role in ROLES]


def connected(place: Place, machine: str, status: str = "Connected") -> None:
    """Registers the machine as another program would."""
    place.system._install()
    place.system.registered.write_text(json.dumps({"status": status, "resourceId": machine}))
    made = {"identity": {"principalId": "principal-1"}, "location": "West Europe", "tags": {"theirs": "stays"}}
    place.azure.keep({"machines": {machine: made}, "roles": {}})


def replaced(place: Place) -> None:
    """Registers another machine in Azure with the name of this one."""
    theirs = {"identity": {"principalId": "principal-2"}, "location": "x", "tags": {}}
    place.azure.keep({**place.azure.state, "machines": {MACHINE: theirs}})


def failure(place: Place, **changes: Any) -> FlexError:
    with pytest.raises(FlexError) as caught:
        place.register_with(**changes)
    return caught.value


def test_registration_connects_the_machine_and_assigns_its_roles(place: Place) -> None:
    place.register_with(arc__tags={"site": "one", "racks": "a,b=c"})
    assert sorted(place.azure.state["roles"]) == sorted(ASSIGNMENTS)
    assert place.azure.state["machines"][MACHINE]["tags"] == {"site": "one", "racks": "a,b=c"}
    assert machine_agent.status(place.host, config())["status"] == "Connected"
    assert machine_agent.status(place.host, config())["principalId"] == "principal-1"


def test_second_registration_makes_no_azure_calls_and_no_changes(place: Place) -> None:
    place.register_with()
    place.azure.calls.clear()
    place.host.done.clear()
    place.register_with()
    assert (place.azure.calls, place.host.done) == ([], [])


def test_registration_restores_deleted_role_only_when_verified_again(place: Place) -> None:
    place.register_with()
    place.azure.delete(ASSIGNMENTS[1], "")
    place.register_with()
    assert len(place.azure.state["roles"]) == 1
    place.register_with(verify_again=True)
    assert len(place.azure.state["roles"]) == 2


def test_registration_passes_no_token_in_argv_and_deletes_settings_file(place: Place) -> None:
    place.register_with()
    assert not any("operators-token" in word for argv in place.system.run for word in argv)
    [written] = [one for one in place.host.done if isinstance(one, WriteFile) and one.path == SETTINGS_FILE]
    assert (written.mode, written.secret) == (0o600, True)
    assert place.host.stat(SETTINGS_FILE) is None


def test_registration_changes_nothing_when_connected_to_another_resource(place: Place) -> None:
    connected(place, MACHINE.replace("group-1", "theirs"))
    before = harness.tree(place.root)
    error = failure(place)
    assert error.name == "arc-connected-elsewhere"
    assert "theirs" in error.message
    assert harness.changes(before, harness.tree(place.root)) == {}


def test_registration_of_a_connected_machine_only_updates_its_own_tags(place: Place) -> None:
    connected(place, MACHINE)
    place.system.registered.write_text(json.dumps({"status": "Connected", "resourceId": MACHINE.lower()}))
    place.register_with()
    assert not any("connect" in argv for argv in place.system.run)
    assert place.azure.state["machines"][MACHINE]["tags"] == {"theirs": "stays", "site": "one"}
    place.register_with(arc__tags={"site": "two"})
    assert place.azure.state["machines"][MACHINE]["tags"] == {"theirs": "stays", "site": "two"}


@pytest.mark.parametrize(("proxy", "told"), [("http://proxy:3128", True), ("http://me:hidden@proxy:3128", False)])
def test_azcmagent_gets_the_proxy_url_unless_it_contains_a_password(place: Place, proxy: str, told: bool) -> None:
    given = config()
    place.registration(replace(given, proxy=replace(given.proxy, https=proxy))).run()
    assert (("/usr/bin/azcmagent", "config", "set", "proxy.url", proxy) in place.system.run) is told
    assert not any("hidden" in word for argv in place.system.run for word in argv)
    assert any("azcmagent config set proxy.url" in note for note in place.notes) is not told


def test_registration_fails_without_azcmagent_when_install_is_disabled(place: Place) -> None:
    assert failure(place, arc__package__install=False).name == "azcmagent-not-found"
    assert place.system.run == []


def test_role_assignment_waits_until_azure_knows_the_principal(place: Place) -> None:
    place.azure.known_after = 30.0
    place.register_with()
    assert any("does not know the machine's identity yet" in note for note in place.notes)
    assert len(place.azure.state["roles"]) == 2


def test_existing_role_assignment_is_accepted_and_not_removed_later(place: Place) -> None:
    exists = refused_error(409, '{"error": {"code": "RoleAssignmentExists", "message": "It exists."}}')
    connected(place, MACHINE)
    state = place.azure.state
    state["roles"] = {"by-somebody": {"roleDefinitionId": f"x/{ROLES[0].id}"}}
    place.azure.keep(state)
    place.azure.faults[f"PUT {ASSIGNMENTS[0]}"] = exists
    place.register_with()
    assert place.unregister() == []
    assert list(place.azure.state["roles"]) == ["by-somebody"]


def test_forbidden_role_assignment_fails_at_once_with_role_and_scope(place: Place) -> None:
    words = '{"error": {"code": "AuthorizationFailed", "message": "No authorization."}}'
    place.azure.faults[f"PUT {CLUSTER}"] = refused_error(403, words)
    error = failure(place)
    assert error.name == "role-assignment-forbidden"
    assert CLUSTER_USER.name in error.message
    assert CLUSTER in error.message
    assert f'--role "{CLUSTER_USER.name}" --scope {CLUSTER}' in error.hint
    assert place.azure.clock.time == 0.0
    assert len([call for call in place.azure.calls if call.startswith("PUT")]) == 1


def test_registration_waits_for_slow_role_assignments_with_few_requests(place: Place) -> None:
    place.azure.effective_after = 90.0
    place.register_with()
    assert 90.0 <= place.azure.clock.time < 90.0 + 15.0
    assert any(CLUSTER_USER.name in note and "waiting" in note for note in place.notes)
    assert len([call for call in place.azure.calls if call.endswith("/permissions")]) < 15


def test_registration_prints_role_commands_when_auto_assignment_is_off(place: Place) -> None:
    place.register_with(arc__autoRoleAssignment=False)
    told = [note for note in place.notes if "az role assignment create" in note]
    assert [role.name in note for role, note in zip(ROLES, told, strict=True)] == [True] * 2
    assert not any(call.startswith("PUT") for call in place.azure.calls)
    place.notes.clear()
    place.register_with(arc__autoRoleAssignment=False)
    assert len([note for note in place.notes if "az role assignment create" in note]) == 2


def test_registration_reports_a_metadata_service_that_is_not_running(place: Place) -> None:
    place.system.himds = "failed"
    error = failure(place)
    assert error.name == "himds-unavailable"
    assert "journalctl -u himdsd.service" in error.hint


@pytest.mark.parametrize("key", ["subscriptionId", "tenantId", "resourceGroup", "location"])
def test_registration_checks_required_settings_before_any_change(place: Place, key: str) -> None:
    less = config(targetCluster=None, arc__autoRoleAssignment=False)
    azure = replace(less.azure, **{_snake(key): None})
    with pytest.raises(ConfigError, match=key):
        place.registration(replace(less, azure=azure)).run()
    assert place.host.done == []


def _snake(key: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)


def test_registration_replaces_its_own_expired_connection(place: Place) -> None:
    """Azure creates no new identity for an existing machine, so the old resource is deleted first."""
    place.register_with()
    place.system.registered.write_text(json.dumps({"status": "Expired", "resourceId": MACHINE}))
    place.register_with()
    assert f"DELETE {MACHINE}" in place.azure.calls
    assert ("/usr/bin/azcmagent", "disconnect", "--force-local-only") in place.system.run
    assert machine_agent.status(place.host, config())["status"] == "Connected"


def test_registration_does_not_delete_a_replacement_of_the_expired_machine(place: Place) -> None:
    place.register_with()
    replaced(place)
    place.system.registered.write_text(json.dumps({"status": "Expired", "resourceId": MACHINE}))
    place.system.refused = "AZCM0044: a resource with the same name exists"
    failure(place)
    assert f"DELETE {MACHINE}" not in place.azure.calls


def test_registration_refuses_expired_connection_it_did_not_create(place: Place) -> None:
    connected(place, MACHINE, "Expired")
    assert failure(place).name == "arc-expired"
    assert place.system.run == []


def test_unregister_without_network_returns_the_azure_cleanup_commands(place: Place) -> None:
    place.register_with()
    place.azure.down = True
    left = place.unregister()
    assert left == [
        *(f"az role assignment delete --ids {each}" for each in ASSIGNMENTS),
        f"az resource delete --ids {MACHINE}",
    ]
    assert machine_agent.find_azcmagent(place.host) is None
    assert place.host.stat("/var/opt/azcmagent") is None


def test_unregister_keeps_azcmagent_and_machine_that_existed_before(place: Place) -> None:
    connected(place, MACHINE)
    before = place.azure.state["machines"]
    place.register_with(arc__tags={})
    assert place.unregister() == []
    assert place.azure.state == {"machines": before, "roles": {}}
    assert machine_agent.find_azcmagent(place.host)
    assert place.system.registered.exists()


def test_unregister_keeps_foreign_azure_machine_of_the_same_name(place: Place) -> None:
    """The connection was rejected, so the Azure resource of that name never belonged to this machine."""
    theirs = {MACHINE: {"identity": {"principalId": "theirs"}, "location": "x", "tags": {}}}
    place.azure.keep({"machines": theirs, "roles": {}})
    place.system._install()
    place.system.refused = "HCRP409: it belongs to another computer"
    assert failure(place).name == "azcmagent-failed"
    assert place.host.stat(SETTINGS_FILE) is None, "it contains a token"
    place.system.refused = ""
    assert place.unregister() == []
    assert place.azure.state["machines"] == theirs


@pytest.mark.parametrize("azcmagent", ["there", "gone"])
def test_unregister_keeps_the_azure_machine_that_replaced_this_one(place: Place, azcmagent: str) -> None:
    """azcmagent still considers itself connected and would delete the resource by its name."""
    place.register_with()
    replaced(place)
    if azcmagent == "gone":
        (place.root / "usr/bin/azcmagent").unlink()
    assert place.unregister() == []
    assert list(place.azure.state["machines"]) == [MACHINE]
    assert not place.system.registered.exists()


def test_unregister_after_name_race_keeps_the_other_machine(place: Place) -> None:
    """Both registrations found no resource and then created it."""
    place.system._install()
    place.system.refused = "AZCM0044: a resource with the same name exists"
    assert failure(place).name == "azcmagent-failed"
    replaced(place)
    place.system.refused = ""
    [told] = place.unregister()
    assert told.startswith(f"az resource delete --ids {MACHINE}  # only if no other machine")
    assert list(place.azure.state["machines"]) == [MACHINE]


def test_unregister_keeps_azcmagent_installed_by_others_after_our_failure(place: Place) -> None:
    place.system.refused = "the mirror is away"
    assert failure(place).name == "arc-package-failed"
    place.system.refused = ""
    place.system._install()
    place.register_with()
    place.unregister()
    assert machine_agent.find_azcmagent(place.host)


def test_role_wait_shows_the_error_that_blocks_the_check(place: Place) -> None:
    down = AzureCallError("arc-agent-unavailable", "The agent of Azure Arc does not answer.", "", retryable=True)
    place.azure.faults[f"GET {CLUSTER}"] = down
    assert failure(place, arc__waitSeconds=5).name == "role-assignments-not-effective"
    assert any("waiting" in note and "does not answer" in note for note in place.notes)


def test_arc_identity_overrides_the_nodes_service_principal() -> None:
    other = config(arc__enabled=False, servicePrincipal={"clientId": "a", "clientSecret": "s"})
    assert (identity_kind(other), identity_kind(with_arc_identity(other))) == ("servicePrincipal", "arc")


def test_registration_retries_throttled_azure_calls(place: Place) -> None:
    place.register_with(arc__autoRoleAssignment=False)
    place.azure.throttled = 4
    place.register_with()
    assert len(place.azure.state["roles"]) == 2
    assert place.azure.clock.time > 0


TOKEN: dict[str, Any] = {"bootstrapToken__token": "abcdef.0123456789abcdef"}
CUSTOM = "12345678-1234-1234-1234-123456789ABC"


@pytest.mark.parametrize(
    ("changes", "roles"),
    [
        ({}, [CLUSTER_USER, RBAC_CLUSTER_ADMIN]),
        (TOKEN, [CLUSTER_USER]),
        ({"arc__roles": [CLUSTER_USER.name]}, [CLUSTER_USER]),
        ({"arc__roles": ["reader", CLUSTER_ADMIN.name]}, [READER, CLUSTER_ADMIN]),
        ({"arc__roles": [CUSTOM]}, [AzureRole(CUSTOM.lower(), CUSTOM)]),
        ({"arc__roles": []}, []),
    ],
    ids=["identity", "token", "chosen", "two", "custom role", "none"],
)
def test_machine_gets_the_least_or_the_chosen_roles(changes: dict[str, object], roles: list[AzureRole]) -> None:
    assert list(cluster_roles(config(**changes))) == roles


def test_node_of_a_provider_gets_no_kubernetes_role() -> None:
    of = config()
    managed = replace(of, provider=replace(of.provider, url="https://rp.example"))
    by_identity = replace(managed.node, kubelet=replace(managed.node.kubelet, auth="exec"))
    assert cluster_roles(replace(managed, node=by_identity)) == (CLUSTER_USER,)


def test_verified_registration_removes_roles_that_are_no_longer_chosen(place: Place) -> None:
    place.register_with(arc__roles=["Reader", CLUSTER_ADMIN.name, CLUSTER_USER.name])
    assert len(place.azure.state["roles"]) == 3
    place.register_with(arc__roles=[CLUSTER_USER.name])
    assert list(place.azure.state["roles"]) == [ASSIGNMENTS[0]]
    assert place.unregister() == []
    assert place.azure.state["roles"] == {}


def test_registration_keeps_roles_of_a_cluster_in_other_spelling(place: Place) -> None:
    place.register_with()
    records = ArcRecordStore(place.host, config())
    records.update(assignments=tuple(each.upper() for each in ASSIGNMENTS))

    place.register_with(verify_again=True)

    assert sorted(place.azure.state["roles"]) == sorted(ASSIGNMENTS)
    assert sorted(records.current.assignments) == sorted(ASSIGNMENTS)


def test_registration_assigns_role_of_a_changed_join_method(place: Place) -> None:
    place.register_with(**TOKEN)
    assert list(place.azure.state["roles"]) == [ASSIGNMENTS[0]]

    place.register_with()

    assert sorted(place.azure.state["roles"]) == sorted(ASSIGNMENTS)


GROUP = "/subscriptions/sub-1/resourceGroups/nodes/providers/Microsoft.Network"
GATEWAY, NETWORK = f"{GROUP}/virtualNetworkGateways/aks-flex-node", f"{GROUP}/virtualNetworks/net"
SUBNET, ADDRESS = f"{NETWORK}/subnets/GatewaySubnet", f"{GROUP}/publicIPAddresses/aks-flex-node-address"
PARTS = {"properties": {"subnet": {"id": SUBNET}, "publicIPAddress": {"id": ADDRESS}}}


def test_machine_gets_the_roles_for_vpn_renewals_on_the_gateway_once(place: Place) -> None:
    place.register_with()
    place.azure.resources[GATEWAY] = {"properties": {"ipConfigurations": [PARTS]}}
    place.registration(config()).grant_gateway(GATEWAY, NETWORK)
    wanted = [(scope, NETWORK_CONTRIBUTOR) for scope in (GATEWAY, SUBNET, ADDRESS)] + [(NETWORK, READER)]
    granted = {assignment_id(scope, role, "principal-1") for scope, role in wanted}
    assert set(place.azure.state["roles"]) == granted | set(ASSIGNMENTS)

    place.azure.calls.clear()
    place.registration(config()).grant_gateway(GATEWAY.upper(), NETWORK)
    assert place.azure.calls == []
    assert place.unregister() == []
    assert place.azure.state["roles"] == {}


def test_forbidden_gateway_role_is_reported_and_tried_again(place: Place) -> None:
    place.register_with()
    place.azure.resources[GATEWAY] = {}
    words = '{"error": {"code": "AuthorizationFailed", "message": "No authorization."}}'
    place.azure.faults[f"PUT {GATEWAY}"] = refused_error(403, words)
    place.registration(config()).grant_gateway(GATEWAY, NETWORK)
    assert f'--role "Network Contributor" --scope {GATEWAY}' in place.notes[-1]
    place.azure.faults.clear()
    place.registration(config()).grant_gateway(GATEWAY, NETWORK)
    assert assignment_id(GATEWAY, NETWORK_CONTRIBUTOR, "principal-1") in place.azure.state["roles"]


def test_node_of_an_aks_pool_gets_its_role_at_the_pool_only(place: Place) -> None:
    of = config()
    pooled = replace(of, azure=replace(of.azure, target_agent_pool_name="edge"))
    assert cluster_roles(pooled) == (FLEX_NODE_AGENT,)
    want = desired_machine(pooled, harness.engine(place.host, pooled).machine)
    assert want.cluster == f"{CLUSTER}/agentPools/edge"
