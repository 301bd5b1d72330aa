"""Tests of the options of `node create` and `node update`, applied to a node's properties."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from aks_flex_node.api.node_changes import (
    NodeOptions,
    OptionError,
    UnusedOptionsError,
    apply_options,
    auth_method_of,
    conflicting_paths,
    malformed_path,
    writable_properties,
)

Properties = dict[str, Any]
CLIENT = "11111111-2222-3333-4444-555555555555"
NEWER = {"azureAuth": {"method": "workloadIdentity", "workloadIdentity": {"clientId": CLIENT}}}
TOKEN = {"kubernetesAuth": {"useAzureAuth": False, "method": "bootstrapToken"}}
EXEC = {"kubernetesAuth": {"useAzureAuth": True, "method": "exec"}}
URL = "https://10.1.0.4"


def node(**settings: Any) -> Properties:
    return {"nodeConfig": settings}


def principal(**credential: Any) -> Properties:
    settings = {"clientId": CLIENT, **credential}
    return {"azureAuth": {"method": "servicePrincipal", "servicePrincipal": settings}}


def managed(**identity: str) -> Properties:
    return {"azureAuth": {"method": "managedIdentity", "managedIdentity": identity}}


def policy(**settings: Any) -> Properties:
    return node(updatePolicy=settings)


def window(**settings: Any) -> Properties:
    return {"maintenanceWindow": {"start": "22:00", **settings}}


def taint(key: str, effect: str, **value: str) -> dict[str, str]:
    return {"key": key, "effect": effect, **value}


def kubelet(**settings: Any) -> Properties:
    return node(kubelet=settings)


@pytest.mark.parametrize(
    ("before", "options", "after"),
    [
        (node(maxPods=50), NodeOptions(), node(maxPods=50)),
        ({}, NodeOptions(), {}),
        # Identities
        (principal(), NodeOptions(certificate_on_machine=True), principal(certificateOnMachine=True)),
        (principal(certificateOnMachine=True), NodeOptions(client_secret="new"), principal(clientSecret="new")),
        (principal(), NodeOptions(client_secret="new"), principal(clientSecret="new")),
        (managed(clientId=CLIENT), NodeOptions(client_id=CLIENT, client_secret="s"), principal(clientSecret="s")),
        (
            principal(),
            NodeOptions(auth_method="managedIdentity", principal_id=CLIENT),
            managed(principalId=CLIENT),
        ),
        (principal() | EXEC, NodeOptions(auth_method="none"), {"azureAuth": {"method": "none"}}),
        (principal() | EXEC, NodeOptions(auth_method="bootstrapToken"), {"azureAuth": {"method": "none"}}),
        (NEWER, NodeOptions(continuous_monitoring=True), {**NEWER, "continuousMonitoring": True}),
        (EXEC, NodeOptions(kubernetes_auth="bootstrapToken"), TOKEN),
        # Labels and taints
        (
            node(labels={"site": "north", "rack": "7"}),
            NodeOptions(labels=["rack-", "site=south", "empty=", "a/b=c=d"]),
            node(labels={"site": "south", "empty": "", "a/b": "c=d"}),
        ),
        (
            node(taints=[taint("a", "NoSchedule", value="1")]),
            NodeOptions(taints=["a=2:NoSchedule", "a:NoExecute", "b=x:PreferNoSchedule", "b-"]),
            node(taints=[taint("a", "NoSchedule", value="2"), taint("a", "NoExecute")]),
        ),
        (
            node(taints=[taint("a", "NoSchedule"), taint("a", "NoExecute")]),
            NodeOptions(taints=["a:NoExecute-"]),
            node(taints=[taint("a", "NoSchedule")]),
        ),
        (  # the server refuses a taint without a key
            node(taints=[{"effect": "NoExecute"}]),
            NodeOptions(taints=["a:NoSchedule"]),
            node(taints=[{"effect": "NoExecute"}, taint("a", "NoSchedule")]),
        ),
        # Versions: an empty one is removed
        ({"versions": {"agent": "1", "runc": "2"}}, NodeOptions(agent_version=""), {"versions": {"runc": "2"}}),
        ({"versions": {"runc": "1"}}, NodeOptions(runc_version=""), {}),
        ({}, NodeOptions(agent_version=""), {}),
        # Removed settings and sections
        (managed(clientId=CLIENT, principalId=CLIENT), NodeOptions(client_id=""), managed(principalId=CLIENT)),
        (principal(clientTenant=CLIENT), NodeOptions(client_tenant=""), principal()),
        (
            node(maxPods=50, updatePolicy={"drain": False}, labels={"a": "b"}) | {"continuousMonitoring": True},
            NodeOptions(
                unset=["nodeConfig.maxPods", "nodeConfig.updatePolicy.drain", "continuousMonitoring"], labels=["c=d"]
            ),
            node(labels={"a": "b", "c": "d"}),
        ),
        (principal() | EXEC, NodeOptions(unset=["azureAuth.method", "kubernetesAuth.method"]), {}),
        (policy(**window()), NodeOptions(unset=["nodeConfig.updatePolicy.maintenanceWindow.start"]), {}),
        # Network
        (node(vpn={"gatewayName": "g"}), NodeOptions(vpn=True), node(vpn={"gatewayName": "g", "enabled": True})),
        (node(vpn={"enabled": True}), NodeOptions(vpn=False), node(vpn={"enabled": False})),
        (kubelet(verbosity=4), NodeOptions(server_url=URL), kubelet(verbosity=4, serverURL=URL)),
        (kubelet(verbosity=4, serverURL=URL), NodeOptions(server_url=""), kubelet(verbosity=4)),
        (kubelet(serverURL=URL), NodeOptions(server_url=""), {}),
        ({}, NodeOptions(server_url=""), {}),
        # Update policy
        (policy(drain=False), NodeOptions(pause=True), policy(drain=False, paused=True)),
        (policy(drain=False, paused=True), NodeOptions(pause=False), policy(drain=False, paused=False)),
        (
            policy(),
            NodeOptions(window_start="22:00", window_days=["sunday", "Saturday"], window_minutes=90),
            policy(**window(durationMinutes=90, days=["Saturday", "Sunday"])),
        ),
        (
            policy(**window(days=["Monday"]), paused=True),
            NodeOptions(window_days=["daily"], window_time_zone="Europe/Berlin"),
            policy(**window(timeZone="Europe/Berlin"), paused=True),
        ),
        (policy(**window(), drain=True), NodeOptions(window_start=""), policy(drain=True)),
        (
            policy(paused=True),
            NodeOptions(drain=False, drain_timeout=60, health_timeout=120),
            policy(paused=True, drain=False, drainTimeoutSeconds=60, healthTimeoutSeconds=120),
        ),
        # The kubelet
        (
            kubelet(verbosity=4),
            NodeOptions(kubelet_config={"imageGCLowThreshold": 60}, server_url=URL),
            kubelet(imageGCLowThreshold=60, serverURL=URL),
        ),
        (
            {},
            NodeOptions(kubelet_settings=["podPidsLimit=100", "clusterDomain=a.b"]),
            kubelet(podPidsLimit=100, clusterDomain="a.b"),
        ),
        (
            kubelet(kubeReserved={"memory": "1Gi"}),
            NodeOptions(kubelet_settings=["kubeReserved.cpu=100m", "evictionHard.memory.available=5%"]),
            kubelet(kubeReserved={"memory": "1Gi", "cpu": "100m"}, evictionHard={"memory.available": "5%"}),
        ),
        (
            kubelet(kubeReserved={"memory": "1Gi"}, verbosity=4, systemReserved={"cpu": "1", "memory": "1Gi"}),
            NodeOptions(kubelet_settings=["kubeReserved.memory-", "verbosity-", "systemReserved.cpu-"]),
            kubelet(systemReserved={"memory": "1Gi"}),
        ),
        (
            {},
            NodeOptions(
                kubelet_settings=["extraConfig.serializeImagePulls=false", "extraConfig.cpuManagerPolicy=static"]
            ),
            kubelet(extraConfig={"serializeImagePulls": False, "cpuManagerPolicy": "static"}),
        ),
        (kubelet(verbosity=4), NodeOptions(kubelet_settings=["verbosity-"]), {}),
    ],
)
def test_options_change_only_what_they_name(before: Properties, options: NodeOptions, after: Properties) -> None:
    given = deepcopy(before)

    assert apply_options(before, options) == after
    assert before == given


def test_client_secret_is_not_in_the_representation() -> None:
    assert "s3cret" not in repr(NodeOptions(client_secret="s3cret"))


def test_auth_method_is_none_without_an_identity() -> None:
    methods = [auth_method_of(each) for each in (principal(), {"azureAuth": {"method": "none"}}, {})]

    assert methods == ["servicePrincipal", "none", "none"]


def test_writable_properties_exclude_read_only_fields() -> None:
    read = {"properties": {"configVersion": "1", "status": {}, "config": {}, "versions": {"runc": "1.3.0"}}}

    assert writable_properties(read) == {"versions": {"runc": "1.3.0"}}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("labels", ["", "-", "=x", "plain"]),
        ("taints", ["", "key", "key=value", ":NoSchedule"]),
        ("kubelet_settings", ["nodeIP=1.2.3.4", "podPidsLimit=many", "kubeReserved=1Gi", "verbosity"]),
        ("window_days", ["Caturday"]),
        ("unset", ["maxPods", "nodeConfig.maxpods", "nodeConfig.labels.site", ""]),
    ],
)
def test_malformed_value_is_refused_with_its_option(name: str, values: list[str]) -> None:
    for value in values:
        options: Properties = {name: [value]}
        with pytest.raises(OptionError) as refused:
            apply_options({}, NodeOptions(**options))

        assert (refused.value.option, refused.value.value) == (name.replace("_", "-"), value)


def test_unknown_auth_method_is_refused() -> None:
    with pytest.raises(OptionError) as refused:
        apply_options({}, NodeOptions(auth_method="password"))

    assert (refused.value.option, refused.value.value) == ("auth-method", "password")


@pytest.mark.parametrize(
    ("properties", "path"),
    [
        ({}, ""),
        ({"nodeConfig": {"labels": {}, "taints": [{}]}}, ""),
        ({"nodeConfig": {"labels": ["site"]}}, "nodeConfig.labels"),
        ({"nodeConfig": {"taints": ["edge"]}}, "nodeConfig.taints"),
        ({"azureAuth": "arc"}, "azureAuth"),
        ({"versions": "1.34.4"}, "versions"),
    ],
)
def test_malformed_path_names_property_of_wrong_type(properties: dict[str, object], path: str) -> None:
    assert malformed_path(properties) == path


def test_options_of_another_auth_method_are_refused() -> None:
    with pytest.raises(UnusedOptionsError, match="--client-tenant") as tenant:
        apply_options({}, NodeOptions(auth_method="arc", client_tenant="contoso.com"))
    assert tenant.value.hint == "Also set the method: --auth-method servicePrincipal."
    with pytest.raises(UnusedOptionsError) as client:
        apply_options({}, NodeOptions(auth_method="arc", client_id=CLIENT))
    assert client.value.hint == "Also set the method: --auth-method servicePrincipal or managedIdentity."


def test_wrong_value_of_a_kubelet_setting_is_not_reported_as_its_key() -> None:
    with pytest.raises(OptionError) as refused:
        apply_options({}, NodeOptions(kubelet_settings=["podPidsLimit=many"]))
    assert (refused.value.reason, refused.value.hint) == ("is not a whole number", "Use podPidsLimit=N.")


def test_conflicting_paths_lists_only_diverging_changes_of_same_path() -> None:
    first, second = {"nodeConfig": {"maxPods": 50}}, {"nodeConfig": {"maxPods": 50, "labels": {"site": "north"}}}

    def conflicts(later: Properties, **options: Any) -> list[str]:
        return conflicting_paths(first, later, lambda properties: apply_options(properties, NodeOptions(**options)))

    assert conflicts(second, max_pods=60, labels=["rack=7"]) == []
    assert conflicts(second, labels=["site=south"]) == ["nodeConfig.labels.site"]
    assert conflicts({"nodeConfig": {"maxPods": 60}}, max_pods=60) == []
