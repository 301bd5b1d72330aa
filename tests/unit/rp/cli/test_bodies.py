"""What words make of a node's properties."""

from __future__ import annotations

import pytest

from aks_flex_node.errors import CommandUsageError
from aks_flex_node.rp.cli.bodies import Said, changed, overruled, writable

CLIENT = "11111111-2222-3333-4444-555555555555"
JOINING = (
    Said(use_azure_auth=True),
    Said(use_azure_auth=False),
    Said(azure_auth="exec"),
    Said(use_azure_auth=True, azure_auth="certificate"),
)
PRINCIPAL = {"method": "servicePrincipal", "servicePrincipal": {"clientId": CLIENT}}


def test_nothing_said_changes_nothing() -> None:
    before = {"azureAuth": {"method": "none"}, "nodeConfig": {"maxPods": 50}}

    assert changed(before, Said()) == before
    assert changed({}, Said()) == {}


def test_only_what_a_caller_may_write_goes_back() -> None:
    read = {"properties": {"configVersion": "1", "status": {}, "config": {}, "versions": {"runc": "1.3.0"}}}

    assert writable(read) == {"versions": {"runc": "1.3.0"}}


def test_how_a_kubelet_joins_is_said_in_one_word() -> None:
    by = {said.azure_auth or said.use_azure_auth: changed({}, said)["kubernetesAuth"] for said in JOINING}

    assert by == {
        True: {"useAzureAuth": True},
        False: {"method": "bootstrapToken"},
        "exec": {"useAzureAuth": True, "method": "exec"},
        "certificate": {"useAzureAuth": True, "method": "certificate"},
    }


def test_a_principal_signs_in_by_a_secret_or_by_a_certificate_of_the_machine() -> None:
    before = {"azureAuth": PRINCIPAL}

    by_certificate = changed(before, Said(certificate_on_machine=True))
    assert by_certificate["azureAuth"]["servicePrincipal"] == {"clientId": CLIENT, "certificateOnMachine": True}
    by_secret = changed(by_certificate, Said(client_secret="s3cret"))
    assert by_secret["azureAuth"]["servicePrincipal"] == {"clientId": CLIENT, "clientSecret": "s3cret"}


def test_labels_are_set_and_removed_as_kubectl_does() -> None:
    before = {"nodeConfig": {"labels": {"site": "north", "rack": "7"}}}

    after = changed(before, Said(labels=["rack-", "site=south", "empty=", "a/b=c=d"]))
    assert after["nodeConfig"]["labels"] == {"site": "south", "empty": "", "a/b": "c=d"}
    assert before["nodeConfig"]["labels"] == {"site": "north", "rack": "7"}


def test_a_pause_leaves_the_rest_of_the_policy_alone() -> None:
    paused = changed({"nodeConfig": {"updatePolicy": {"drain": False}}}, Said(pause=True))

    assert paused["nodeConfig"]["updatePolicy"] == {"drain": False, "paused": True}
    assert changed(paused, Said(pause=False))["nodeConfig"]["updatePolicy"] == {"drain": False, "paused": False}


def test_a_vpn_is_put_on_and_off_and_keeps_its_settings() -> None:
    behind = changed({"nodeConfig": {"vpn": {"gatewayName": "gate"}}}, Said(vpn=True))

    assert behind["nodeConfig"]["vpn"] == {"gatewayName": "gate", "enabled": True}
    assert changed(behind, Said(vpn=False))["nodeConfig"]["vpn"] == {"gatewayName": "gate", "enabled": False}


def test_the_address_of_the_api_server_can_be_said_and_taken_back() -> None:
    before = {"nodeConfig": {"kubelet": {"verbosity": 4}}}
    after = changed(before, Said(server_url="https://10.1.0.4"))

    assert after["nodeConfig"]["kubelet"] == {"verbosity": 4, "serverURL": "https://10.1.0.4"}
    assert changed(after, Said(server_url="")) == before
    assert changed({}, Said(server_url="")) == {}
    alone = {"nodeConfig": {"kubelet": {"serverURL": "https://10.1.0.4"}}}
    assert changed(alone, Said(server_url="")) == {"nodeConfig": {}}


def test_taints_are_known_by_key_and_effect() -> None:
    before = {"nodeConfig": {"taints": [{"key": "a", "value": "1", "effect": "NoSchedule"}]}}

    after = changed(before, Said(taints=["a=2:NoSchedule", "a:NoExecute", "b=x:PreferNoSchedule", "b-"]))
    assert after["nodeConfig"]["taints"] == [
        {"key": "a", "value": "2", "effect": "NoSchedule"},
        {"key": "a", "effect": "NoExecute"},
    ]
    assert changed(after, Said(taints=["a:NoExecute-"]))["nodeConfig"]["taints"] == [
        {"key": "a", "value": "2", "effect": "NoSchedule"}
    ]


@pytest.mark.parametrize("word", ["", "-", "=x", "plain"])
def test_what_is_no_label_is_refused(word: str) -> None:
    with pytest.raises(CommandUsageError) as refused:
        changed({}, Said(labels=[word]))

    assert refused.value.name == "label-malformed"


@pytest.mark.parametrize("word", ["", "key", "key=value", ":NoSchedule"])
def test_what_is_no_taint_is_refused(word: str) -> None:
    with pytest.raises(CommandUsageError) as refused:
        changed({}, Said(taints=[word]))

    assert refused.value.name == "taint-malformed"


def test_a_new_secret_goes_to_the_identity_there_is() -> None:
    after = changed({"azureAuth": PRINCIPAL}, Said(client_secret="new"))

    assert after["azureAuth"]["servicePrincipal"] == {"clientId": CLIENT, "clientSecret": "new"}
    assert "new" not in repr(Said(client_secret="new"))


def test_another_method_leaves_nothing_of_the_earlier_one() -> None:
    after = changed({"azureAuth": PRINCIPAL}, Said(auth_method="managedIdentity", principal_id=CLIENT))

    assert after["azureAuth"] == {"method": "managedIdentity", "managedIdentity": {"principalId": CLIENT}}
    assert changed({"azureAuth": PRINCIPAL}, Said(auth_method="none"))["azureAuth"] == {"method": "none"}


def test_options_of_another_method_are_not_lost_silently() -> None:
    with pytest.raises(CommandUsageError, match="--client-tenant"):
        changed({}, Said(auth_method="arc", client_tenant="contoso.com"))


def test_what_others_changed_elsewhere_overrules_nothing() -> None:
    first, second = {"nodeConfig": {"maxPods": 50}}, {"nodeConfig": {"maxPods": 50, "labels": {"site": "north"}}}

    assert overruled(first, second, Said(max_pods=60, labels=["rack=7"])) == []
    assert overruled(first, second, Said(labels=["site=south"])) == ["nodeConfig.labels.site"]
    assert overruled(first, {"nodeConfig": {"maxPods": 60}}, Said(max_pods=60)) == []
