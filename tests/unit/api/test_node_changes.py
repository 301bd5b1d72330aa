"""Options of `node create` and `node update`, applied to a node's properties."""

from __future__ import annotations

import pytest

from aks_flex_node.api.node_changes import (
    NodeChangeError,
    NodeOptions,
    UnusedOptionsError,
    apply_options,
    auth_method_of,
    conflicting_paths,
    malformed_path,
    writable_properties,
)

CLIENT = "11111111-2222-3333-4444-555555555555"
PRINCIPAL = {"method": "servicePrincipal", "servicePrincipal": {"clientId": CLIENT}}


def test_nothing_said_changes_nothing() -> None:
    before = {"azureAuth": {"method": "none"}, "nodeConfig": {"maxPods": 50}}

    assert apply_options(before, NodeOptions()) == before
    assert apply_options({}, NodeOptions()) == {}


def test_only_what_a_caller_may_write_goes_back() -> None:
    read = {"properties": {"configVersion": "1", "status": {}, "config": {}, "versions": {"runc": "1.3.0"}}}

    assert writable_properties(read) == {"versions": {"runc": "1.3.0"}}


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
    with pytest.raises(NodeChangeError) as refused:
        apply_options({}, NodeOptions(labels=[word]))

    assert (refused.value.option, refused.value.value) == ("labels", word)


@pytest.mark.parametrize("word", ["", "key", "key=value", ":NoSchedule"])
def test_what_is_no_taint_is_refused(word: str) -> None:
    with pytest.raises(NodeChangeError) as refused:
        apply_options({}, NodeOptions(taints=[word]))

    assert (refused.value.option, refused.value.value) == ("taints", word)


def test_a_new_secret_goes_to_the_identity_there_is() -> None:
    after = apply_options({"azureAuth": PRINCIPAL}, NodeOptions(client_secret="new"))

    assert after["azureAuth"]["servicePrincipal"] == {"clientId": CLIENT, "clientSecret": "new"}
    assert "new" not in repr(NodeOptions(client_secret="new"))


def test_another_method_leaves_nothing_of_the_earlier_one() -> None:
    after = apply_options({"azureAuth": PRINCIPAL}, NodeOptions(auth_method="managedIdentity", principal_id=CLIENT))

    assert after["azureAuth"] == {"method": "managedIdentity", "managedIdentity": {"principalId": CLIENT}}


@pytest.mark.parametrize("method", ["none", "bootstrapToken"])
def test_without_an_identity_the_kubelet_no_longer_joins_by_one(method: str) -> None:
    before = {"azureAuth": PRINCIPAL, "kubernetesAuth": {"useAzureAuth": True, "method": "exec"}}

    after = apply_options(before, NodeOptions(auth_method=method))
    assert after == {"azureAuth": {"method": "none"}}
    assert (auth_method_of(after), auth_method_of({}), auth_method_of(before)) == ("none", "none", "servicePrincipal")


def test_a_method_that_is_unknown_is_refused() -> None:
    with pytest.raises(NodeChangeError) as refused:
        apply_options({}, NodeOptions(auth_method="password"))

    assert (refused.value.option, refused.value.value) == ("auth-method", "password")


def test_a_method_that_only_the_service_knows_is_left_to_it() -> None:
    newer = {"azureAuth": {"method": "workloadIdentity", "workloadIdentity": {"clientId": CLIENT}}}

    assert apply_options(newer, NodeOptions(monitor=True)) == {**newer, "continuousMonitoring": True}


def test_a_secret_makes_a_node_a_service_principal() -> None:
    managed = {"azureAuth": {"method": "managedIdentity", "managedIdentity": {"clientId": CLIENT}}}

    after = apply_options(managed, NodeOptions(client_id=CLIENT, client_secret="s3cret"))
    assert after["azureAuth"] == {
        "method": "servicePrincipal",
        "servicePrincipal": {"clientId": CLIENT, "clientSecret": "s3cret"},
    }


def test_how_the_kubelet_joins_replaces_what_was_said_before() -> None:
    before = {"kubernetesAuth": {"useAzureAuth": True, "method": "exec"}}

    after = apply_options(before, NodeOptions(kubernetes_auth={"method": "bootstrapToken"}))
    assert after == {"kubernetesAuth": {"method": "bootstrapToken"}}


def test_settings_of_the_kubelet_are_replaced_as_a_whole() -> None:
    before = {"nodeConfig": {"kubelet": {"verbosity": 4}}}

    after = apply_options(before, NodeOptions(kubelet={"imageGCLowThreshold": 60}, server_url="https://10.1.0.4"))
    assert after["nodeConfig"]["kubelet"] == {"imageGCLowThreshold": 60, "serverURL": "https://10.1.0.4"}


@pytest.mark.parametrize(
    ("properties", "path"),
    [
        ({}, ""),
        ({"nodeConfig": {"labels": {}, "taints": [{}]}}, ""),
        ({"nodeConfig": {"labels": ["site"]}}, "nodeConfig.labels"),
        ({"nodeConfig": {"taints": ["edge"]}}, "nodeConfig.taints"),
        ({"azureAuth": "arc"}, "azureAuth.servicePrincipal"),
        ({"versions": "1.34.4"}, "versions"),
    ],
)
def test_properties_of_another_type_are_found(properties: dict[str, object], path: str) -> None:
    assert malformed_path(properties) == path


def test_a_taint_of_a_file_that_lacks_its_key_is_left_to_the_service() -> None:
    after = apply_options({"nodeConfig": {"taints": [{"effect": "NoExecute"}]}}, NodeOptions(taints=["a:NoSchedule"]))

    assert after["nodeConfig"]["taints"] == [{"effect": "NoExecute"}, {"key": "a", "effect": "NoSchedule"}]


def test_options_of_another_method_are_not_lost_silently() -> None:
    with pytest.raises(UnusedOptionsError, match="--client-tenant"):
        apply_options({}, NodeOptions(auth_method="arc", client_tenant="contoso.com"))


def test_what_others_changed_elsewhere_overrules_nothing() -> None:
    first, second = {"nodeConfig": {"maxPods": 50}}, {"nodeConfig": {"maxPods": 50, "labels": {"site": "north"}}}

    assert conflicting_paths(first, second, NodeOptions(max_pods=60, labels=["rack=7"])) == []
    assert conflicting_paths(first, second, NodeOptions(labels=["site=south"])) == ["nodeConfig.labels.site"]
    assert conflicting_paths(first, {"nodeConfig": {"maxPods": 60}}, NodeOptions(max_pods=60)) == []
