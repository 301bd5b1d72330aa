"""Tests of the options of `node create` and `node update`, applied to a node's properties."""

from __future__ import annotations

from typing import get_args

import pytest

from aks_flex_node.api.node_changes import (
    KUBELET_KEYS,
    WEEKDAYS,
    NodeChangeError,
    NodeOptions,
    UnusedOptionsError,
    apply_options,
    auth_method_of,
    conflicting_paths,
    malformed_path,
    writable_properties,
)
from aks_flex_rp.resource.models import Kubelet, Weekday

CLIENT = "11111111-2222-3333-4444-555555555555"
PRINCIPAL = {"method": "servicePrincipal", "servicePrincipal": {"clientId": CLIENT}}


def test_empty_options_change_nothing() -> None:
    before = {"azureAuth": {"method": "none"}, "nodeConfig": {"maxPods": 50}}

    assert apply_options(before, NodeOptions()) == before
    assert apply_options({}, NodeOptions()) == {}


def test_writable_properties_exclude_read_only_fields() -> None:
    read = {"properties": {"configVersion": "1", "status": {}, "config": {}, "versions": {"runc": "1.3.0"}}}

    assert writable_properties(read) == {"versions": {"runc": "1.3.0"}}


def test_service_principal_switches_between_secret_and_certificate() -> None:
    before = {"azureAuth": PRINCIPAL}

    by_certificate = apply_options(before, NodeOptions(certificate_on_machine=True))
    assert by_certificate["azureAuth"]["servicePrincipal"] == {"clientId": CLIENT, "certificateOnMachine": True}
    by_secret = apply_options(by_certificate, NodeOptions(client_secret="s3cret"))
    assert by_secret["azureAuth"]["servicePrincipal"] == {"clientId": CLIENT, "clientSecret": "s3cret"}


def test_labels_are_set_and_removed_with_kubectl_syntax() -> None:
    before = {"nodeConfig": {"labels": {"site": "north", "rack": "7"}}}

    after = apply_options(before, NodeOptions(labels=["rack-", "site=south", "empty=", "a/b=c=d"]))
    assert after["nodeConfig"]["labels"] == {"site": "south", "empty": "", "a/b": "c=d"}
    assert before["nodeConfig"]["labels"] == {"site": "north", "rack": "7"}


def test_pause_keeps_other_update_policy_settings() -> None:
    paused = apply_options({"nodeConfig": {"updatePolicy": {"drain": False}}}, NodeOptions(pause=True))

    assert paused["nodeConfig"]["updatePolicy"] == {"drain": False, "paused": True}
    assert apply_options(paused, NodeOptions(pause=False))["nodeConfig"]["updatePolicy"] == {
        "drain": False,
        "paused": False,
    }


def test_vpn_toggle_keeps_other_vpn_settings() -> None:
    behind = apply_options({"nodeConfig": {"vpn": {"gatewayName": "gate"}}}, NodeOptions(vpn=True))

    assert behind["nodeConfig"]["vpn"] == {"gatewayName": "gate", "enabled": True}
    assert apply_options(behind, NodeOptions(vpn=False))["nodeConfig"]["vpn"] == {
        "gatewayName": "gate",
        "enabled": False,
    }


def test_api_server_url_can_be_set_and_removed() -> None:
    before = {"nodeConfig": {"kubelet": {"verbosity": 4}}}
    after = apply_options(before, NodeOptions(server_url="https://10.1.0.4"))

    assert after["nodeConfig"]["kubelet"] == {"verbosity": 4, "serverURL": "https://10.1.0.4"}
    assert apply_options(after, NodeOptions(server_url="")) == before
    assert apply_options({}, NodeOptions(server_url="")) == {}
    alone = {"nodeConfig": {"kubelet": {"serverURL": "https://10.1.0.4"}}}
    assert apply_options(alone, NodeOptions(server_url="")) == {"nodeConfig": {}}


def test_empty_version_removes_the_version() -> None:
    before = {"versions": {"agent": "1.2.3", "runc": "1.3.0"}}

    after = apply_options(before, NodeOptions(versions={"agent": ""}))
    assert after == {"versions": {"runc": "1.3.0"}}
    assert apply_options(after, NodeOptions(versions={"runc": ""})) == {}
    assert apply_options({}, NodeOptions(versions={"agent": ""})) == {}


def test_taints_are_identified_by_key_and_effect() -> None:
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
def test_malformed_label_is_refused(word: str) -> None:
    with pytest.raises(NodeChangeError) as refused:
        apply_options({}, NodeOptions(labels=[word]))

    assert (refused.value.option, refused.value.value) == ("labels", word)


@pytest.mark.parametrize("word", ["", "key", "key=value", ":NoSchedule"])
def test_malformed_taint_is_refused(word: str) -> None:
    with pytest.raises(NodeChangeError) as refused:
        apply_options({}, NodeOptions(taints=[word]))

    assert (refused.value.option, refused.value.value) == ("taints", word)


def test_new_client_secret_is_added_to_existing_service_principal() -> None:
    after = apply_options({"azureAuth": PRINCIPAL}, NodeOptions(client_secret="new"))

    assert after["azureAuth"]["servicePrincipal"] == {"clientId": CLIENT, "clientSecret": "new"}
    assert "new" not in repr(NodeOptions(client_secret="new"))


def test_changing_auth_method_removes_previous_identity() -> None:
    after = apply_options({"azureAuth": PRINCIPAL}, NodeOptions(auth_method="managedIdentity", principal_id=CLIENT))

    assert after["azureAuth"] == {"method": "managedIdentity", "managedIdentity": {"principalId": CLIENT}}


@pytest.mark.parametrize("method", ["none", "bootstrapToken"])
def test_removing_identity_also_removes_kubernetes_azure_auth(method: str) -> None:
    before = {"azureAuth": PRINCIPAL, "kubernetesAuth": {"useAzureAuth": True, "method": "exec"}}

    after = apply_options(before, NodeOptions(auth_method=method))
    assert after == {"azureAuth": {"method": "none"}}
    assert (auth_method_of(after), auth_method_of({}), auth_method_of(before)) == ("none", "none", "servicePrincipal")


def test_unknown_auth_method_is_refused() -> None:
    with pytest.raises(NodeChangeError) as refused:
        apply_options({}, NodeOptions(auth_method="password"))

    assert (refused.value.option, refused.value.value) == ("auth-method", "password")


def test_auth_method_unknown_to_client_is_kept_unchanged() -> None:
    newer = {"azureAuth": {"method": "workloadIdentity", "workloadIdentity": {"clientId": CLIENT}}}

    assert apply_options(newer, NodeOptions(monitor=True)) == {**newer, "continuousMonitoring": True}


def test_client_id_and_secret_switch_node_to_service_principal() -> None:
    managed = {"azureAuth": {"method": "managedIdentity", "managedIdentity": {"clientId": CLIENT}}}

    after = apply_options(managed, NodeOptions(client_id=CLIENT, client_secret="s3cret"))
    assert after["azureAuth"] == {
        "method": "servicePrincipal",
        "servicePrincipal": {"clientId": CLIENT, "clientSecret": "s3cret"},
    }


def test_kubernetes_auth_option_replaces_previous_settings() -> None:
    before = {"kubernetesAuth": {"useAzureAuth": True, "method": "exec"}}

    after = apply_options(before, NodeOptions(kubernetes_auth={"method": "bootstrapToken"}))
    assert after == {"kubernetesAuth": {"method": "bootstrapToken"}}


def test_kubelet_option_replaces_all_kubelet_settings() -> None:
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
def test_malformed_path_names_property_of_wrong_type(properties: dict[str, object], path: str) -> None:
    assert malformed_path(properties) == path


def test_existing_taint_without_key_is_kept_for_server_validation() -> None:
    after = apply_options({"nodeConfig": {"taints": [{"effect": "NoExecute"}]}}, NodeOptions(taints=["a:NoSchedule"]))

    assert after["nodeConfig"]["taints"] == [{"effect": "NoExecute"}, {"key": "a", "effect": "NoSchedule"}]


def test_options_of_another_auth_method_are_refused() -> None:
    with pytest.raises(UnusedOptionsError, match="--client-tenant"):
        apply_options({}, NodeOptions(auth_method="arc", client_tenant="contoso.com"))


def test_conflicting_paths_lists_only_diverging_changes_of_same_path() -> None:
    first, second = {"nodeConfig": {"maxPods": 50}}, {"nodeConfig": {"maxPods": 50, "labels": {"site": "north"}}}

    assert conflicting_paths(first, second, NodeOptions(max_pods=60, labels=["rack=7"])) == []
    assert conflicting_paths(first, second, NodeOptions(labels=["site=south"])) == ["nodeConfig.labels.site"]
    assert conflicting_paths(first, {"nodeConfig": {"maxPods": 60}}, NodeOptions(max_pods=60)) == []


@pytest.mark.parametrize(
    ("before", "options", "after"),
    [
        (
            {},
            NodeOptions(window_start="22:00", window_days=["sunday", "Saturday"], window_minutes=90),
            {"maintenanceWindow": {"start": "22:00", "durationMinutes": 90, "days": ["Saturday", "Sunday"]}},
        ),
        (
            {"maintenanceWindow": {"start": "22:00", "days": ["Monday"]}, "paused": True},
            NodeOptions(window_days=["daily"], window_time_zone="Europe/Berlin"),
            {"maintenanceWindow": {"start": "22:00", "timeZone": "Europe/Berlin"}, "paused": True},
        ),
        ({"maintenanceWindow": {"start": "22:00"}, "drain": True}, NodeOptions(window_start=""), {"drain": True}),
        (
            {"paused": True},
            NodeOptions(drain=False, drain_timeout=60, health_timeout=120),
            {"paused": True, "drain": False, "drainTimeoutSeconds": 60, "healthTimeoutSeconds": 120},
        ),
    ],
)
def test_window_and_drain_options_change_only_their_settings(
    before: dict[str, object], options: NodeOptions, after: dict[str, object]
) -> None:
    changed = apply_options({"nodeConfig": {"updatePolicy": before}}, options)

    assert changed["nodeConfig"]["updatePolicy"] == after


@pytest.mark.parametrize(
    ("before", "settings", "after"),
    [
        ({}, ["podPidsLimit=100", "clusterDomain=a.b"], {"podPidsLimit": 100, "clusterDomain": "a.b"}),
        (
            {"kubeReserved": {"memory": "1Gi"}},
            ["kubeReserved.cpu=100m", "evictionHard.memory.available=5%"],
            {"kubeReserved": {"memory": "1Gi", "cpu": "100m"}, "evictionHard": {"memory.available": "5%"}},
        ),
        (
            {"kubeReserved": {"memory": "1Gi"}, "verbosity": 4, "systemReserved": {"cpu": "1", "memory": "1Gi"}},
            ["kubeReserved.memory-", "verbosity-", "systemReserved.cpu-"],
            {"systemReserved": {"memory": "1Gi"}},
        ),
        (
            {},
            ["extraConfig.serializeImagePulls=false", "extraConfig.cpuManagerPolicy=static"],
            {"extraConfig": {"serializeImagePulls": False, "cpuManagerPolicy": "static"}},
        ),
    ],
)
def test_kubelet_settings_are_set_and_removed(
    before: dict[str, object], settings: list[str], after: dict[str, object]
) -> None:
    changed = apply_options({"nodeConfig": {"kubelet": before}}, NodeOptions(kubelet_settings=settings))

    assert changed["nodeConfig"]["kubelet"] == after


def test_last_removed_kubelet_setting_removes_section() -> None:
    changed = apply_options(
        {"nodeConfig": {"kubelet": {"verbosity": 4}}}, NodeOptions(kubelet_settings=["verbosity-"])
    )

    assert changed["nodeConfig"] == {}


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (NodeOptions(kubelet_settings=["nodeIP=1.2.3.4"]), "kubelet-settings"),
        (NodeOptions(kubelet_settings=["podPidsLimit=many"]), "kubelet-settings"),
        (NodeOptions(kubelet_settings=["kubeReserved=1Gi"]), "kubelet-settings"),
        (NodeOptions(kubelet_settings=["verbosity"]), "kubelet-settings"),
        (NodeOptions(window_days=["Caturday"]), "window-days"),
    ],
)
def test_invalid_kubelet_setting_or_weekday_is_refused(options: NodeOptions, option: str) -> None:
    with pytest.raises(NodeChangeError) as refused:
        apply_options({}, options)

    assert refused.value.option == option


def test_kubelet_setting_keys_and_weekdays_are_those_of_the_api() -> None:
    fields = {each.alias for each in Kubelet.model_fields.values()}

    assert set(KUBELET_KEYS) == fields
    assert get_args(Weekday) == WEEKDAYS
