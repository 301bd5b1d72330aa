"""What words make of a node's properties."""

from __future__ import annotations

import pytest

from aks_flex_node.errors import CommandUsageError
from aks_flex_rp.cli.node_body import NodeOptions, apply_options, conflicting_paths, writable_properties

CLIENT = "11111111-2222-3333-4444-555555555555"
JOINING = (
    NodeOptions(use_azure_auth=True),
    NodeOptions(use_azure_auth=False),
    NodeOptions(azure_auth="exec"),
    NodeOptions(use_azure_auth=True, azure_auth="certificate"),
)
PRINCIPAL = {"method": "servicePrincipal", "servicePrincipal": {"clientId": CLIENT}}


def test_nothing_said_changes_nothing() -> None:
    before = {"azureAuth": {"method": "none"}, "nodeConfig": {"maxPods": 50}}

    assert apply_options(before, NodeOptions()) == before
    assert apply_options({}, NodeOptions()) == {}


def test_only_what_a_caller_may_write_goes_back() -> None:
    read = {"properties": {"configVersion": "1", "status": {}, "config": {}, "versions": {"runc": "1.3.0"}}}

    assert writable_properties(read) == {"versions": {"runc": "1.3.0"}}


def test_how_a_kubelet_joins_is_said_in_one_word() -> None:
    by = {said.azure_auth or said.use_azure_auth: apply_options({}, said)["kubernetesAuth"] for said in JOINING}

    assert by == {
        True: {"useAzureAuth": True},
        False: {"method": "bootstrapToken"},
        "exec": {"useAzureAuth": True, "method": "exec"},
        "certificate": {"useAzureAuth": True, "method": "certificate"},
    }


def test_a_principal_signs_in_by_a_secret_or_by_a_certificate_of_the_machine() -> None:
    before = {"azureAuth": PRINCIPAL}

    by_certificate = apply_options(before, NodeOptions(certificate_on_machine=True))
    assert by_certificate["azureAuth"]["servicePrincipal"] == {"clientId": CLIENT, "certificateOnMachine": True}
    by_secret = apply_options(by_certificate, NodeOptions(client_secret="s3cret"))
    assert by_secret["azureAuth"]["servicePrincipal"] == {"clientId": CLIENT, "clientSecret": "s3cret"}


def test_labels_are_set_and_removed_as_kubectl_does() -> None:
    before = {"nodeConfig": {"labels": {"site": "north", "rack": "7"}}}

    after = apply_options(before, NodeOptions(labels=["rack-", "site=south", "empty=", "a/b=c=d"]))
    assert after["nodeConfig"]["labels"] == {"site": "south", "empty": "", "a/b": "c=d"}
    assert before["nodeConfig"]["labels"] == {"site": "north", "rack": "7"}


def test_a_pause_leaves_the_rest_of_the_policy_alone() -> None:
    paused = apply_options({"nodeConfig": {"updatePolicy": {"drain": False}}}, NodeOptions(pause=True))

    assert paused["nodeConfig"]["updatePolicy"] == {"drain": False, "paused": True}
    assert apply_options(paused, NodeOptions(pause=False))["nodeConfig"]["updatePolicy"] == {
        "drain": False,
        "paused": False,
    }


def test_a_vpn_is_put_on_and_off_and_keeps_its_settings() -> None:
    behind = apply_options({"nodeConfig": {"vpn": {"gatewayName": "gate"}}}, NodeOptions(vpn=True))

    assert behind["nodeConfig"]["vpn"] == {"gatewayName": "gate", "enabled": True}
    assert apply_options(behind, NodeOptions(vpn=False))["nodeConfig"]["vpn"] == {
        "gatewayName": "gate",
        "enabled": False,
    }


def test_the_address_of_the_api_server_can_be_said_and_taken_back() -> None:
    before = {"nodeConfig": {"kubelet": {"verbosity": 4}}}
    after = apply_options(before, NodeOptions(server_url="https://10.1.0.4"))

    assert after["nodeConfig"]["kubelet"] == {"verbosity": 4, "serverURL": "https://10.1.0.4"}
    assert apply_options(after, NodeOptions(server_url="")) == before
    assert apply_options({}, NodeOptions(server_url="")) == {}
    alone = {"nodeConfig": {"kubelet": {"serverURL": "https://10.1.0.4"}}}
    assert apply_options(alone, NodeOptions(server_url="")) == {"nodeConfig": {}}


def test_taints_are_known_by_key_and_effect() -> None:
    before = {"nodeConfig": {"taints": [{"key": "a", "value": "1", "effect": "NoSchedule"}]}}

    after = apply_options(before, NodeOptions(taints=["a=2:NoSchedule", "a:NoExecute", "b=x:PreferNoSchedule", "b-"]))
    assert after["nodeConfig"]["taints"] == [
        {"key": "a", "value": "2", "effect": "NoSchedule"},
        {"key": "a", "effect": "NoExecute"},
    ]
    assert apply_options(after, NodeOptions(taints=["a:NoExecute-"]))["nodeConfig"]["taints"] == [
        {"key": "a", "value": "2", "effect": "NoSchedule"}
    ]


@pytest.mark.parametrize("word", ["", "-", "=x", "plain"])
def test_what_is_no_label_is_refused(word: str) -> None:
    with pytest.raises(CommandUsageError) as refused:
        apply_options({}, NodeOptions(labels=[word]))

    assert refused.value.name == "label-malformed"


@pytest.mark.parametrize("word", ["", "key", "key=value", ":NoSchedule"])
def test_what_is_no_taint_is_refused(word: str) -> None:
    with pytest.raises(CommandUsageError) as refused:
        apply_options({}, NodeOptions(taints=[word]))

    assert refused.value.name == "taint-malformed"


def test_a_new_secret_goes_to_the_identity_there_is() -> None:
    after = apply_options({"azureAuth": PRINCIPAL}, NodeOptions(client_secret="new"))

    assert after["azureAuth"]["servicePrincipal"] == {"clientId": CLIENT, "clientSecret": "new"}
    assert "new" not in repr(NodeOptions(client_secret="new"))


def test_another_method_leaves_nothing_of_the_earlier_one() -> None:
    after = apply_options({"azureAuth": PRINCIPAL}, NodeOptions(auth_method="managedIdentity", principal_id=CLIENT))

    assert after["azureAuth"] == {"method": "managedIdentity", "managedIdentity": {"principalId": CLIENT}}
    assert apply_options({"azureAuth": PRINCIPAL}, NodeOptions(auth_method="none"))["azureAuth"] == {"method": "none"}


def test_options_of_another_method_are_not_lost_silently() -> None:
    with pytest.raises(CommandUsageError, match="--client-tenant"):
        apply_options({}, NodeOptions(auth_method="arc", client_tenant="contoso.com"))


def test_what_others_changed_elsewhere_overrules_nothing() -> None:
    first, second = {"nodeConfig": {"maxPods": 50}}, {"nodeConfig": {"maxPods": 50, "labels": {"site": "north"}}}

    assert conflicting_paths(first, second, NodeOptions(max_pods=60, labels=["rack=7"])) == []
    assert conflicting_paths(first, second, NodeOptions(labels=["site=south"])) == ["nodeConfig.labels.site"]
    assert conflicting_paths(first, {"nodeConfig": {"maxPods": 60}}, NodeOptions(max_pods=60)) == []
