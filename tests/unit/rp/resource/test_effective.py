"""Tests of effective properties: the template of a pool, overridden by a node's own properties."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aks_flex_rp.resource.effective import explain, leaves, merge_properties
from aks_flex_rp.resource.properties import read_properties

TAINT_KEYS = st.sampled_from(["a", "b", "example.com/c"])
EFFECTS = st.sampled_from(["NoSchedule", "NoExecute"])
VALUES = st.sampled_from(["1", "2", "3"])
REGISTRIES = st.sampled_from(["mcr.microsoft.com", "docker.io"])
VERSIONS = st.sampled_from(["1.33.1", "1.34.2", "2.4.2"])


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


TAINTS = st.lists(
    st.fixed_dictionaries({"key": TAINT_KEYS, "effect": EFFECTS}, optional={"value": VALUES}),
    unique_by=lambda taint: (taint["key"], taint["effect"]),
)
WINDOW = st.fixed_dictionaries(
    {"start": st.just("22:00")}, optional={"days": st.just(["Monday"]), "durationMinutes": st.just(60)}
)
ARC = optional(location=VALUES, tags=st.dictionaries(VALUES, VALUES))
PROPERTIES = optional(
    continuousMonitoring=st.booleans(),
    azureAuth=st.one_of(
        st.just({"method": "none"}),
        st.just({"method": "managedIdentity"}),
        ARC.map(lambda arc: {"method": "arc", "arc": arc}),
    ),
    kubernetesAuth=st.sampled_from([{"method": "bootstrapToken"}, {"useAzureAuth": True}]),
    versions=optional(kubernetes=VERSIONS, containerd=VERSIONS),
    nodeConfig=optional(
        labels=st.dictionaries(TAINT_KEYS, VALUES),
        taints=TAINTS,
        maxPods=st.integers(1, 250),
        kubelet=optional(
            kubeReserved=st.dictionaries(st.sampled_from(["cpu", "memory"]), VALUES), verbosity=st.integers(0, 5)
        ),
        updatePolicy=optional(paused=st.booleans(), maintenanceWindow=WINDOW),
        registryMirrors=st.dictionaries(
            REGISTRIES, st.lists(VALUES.map("https://mirror-{}.example".format), min_size=1)
        ),
    ),
)
CONFIG: dict[str, Any] = {
    "kubernetes": {"version": "1.34.4"},
    "containerd": {"version": "2.4.2"},
    "node": {"maxPods": 110},
}


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@unhurried
@given(PROPERTIES, PROPERTIES)
def test_own_values_always_win(template: dict[str, Any], own: dict[str, Any]) -> None:
    merged = dict(leaves(merge_properties(template, own)))
    assert {path: merged[path] for path, _ in leaves(own)} == dict(leaves(own))


@unhurried
@given(PROPERTIES, PROPERTIES)
def test_every_effective_value_is_of_the_node_or_the_pool(template: dict[str, Any], own: dict[str, Any]) -> None:
    both = {**dict(leaves(template)), **dict(leaves(own))}
    merged = dict(leaves(merge_properties(template, own)))
    assert all(both[path] == value for path, value in merged.items())


@unhurried
@given(PROPERTIES)
def test_merge_with_nothing_changes_nothing(some: dict[str, Any]) -> None:
    assert merge_properties(some, {}) == some
    assert merge_properties({}, some) == some
    assert merge_properties(some, some) == some


@unhurried
@given(PROPERTIES, PROPERTIES)
def test_merge_changes_neither_document_and_is_valid(template: dict[str, Any], own: dict[str, Any]) -> None:
    before = copy.deepcopy((template, own))
    merged = merge_properties(template, own)
    assert (template, own) == before
    assert not read_properties(template)[1]
    assert not read_properties(merged)[1]


@unhurried
@given(PROPERTIES, PROPERTIES)
def test_each_effective_value_has_its_origin(template: dict[str, Any], own: dict[str, Any]) -> None:
    merged = merge_properties(template, own)
    shown, origins = explain(own, merged, CONFIG)
    of_node, of_both = {path for path, _ in leaves(own)}, {path for path, _ in leaves(merged)}
    assert len(origins) == len(list(leaves(shown)))
    for (path, _), origin in zip(leaves(shown), origins.values(), strict=True):
        assert origin == ("node" if path in of_node else "pool" if path in of_both else "default")


def test_settings_of_another_identity_are_not_mixed() -> None:
    template = {"azureAuth": {"method": "arc", "arc": {"location": "westeurope"}}}
    own = {"azureAuth": {"method": "servicePrincipal", "servicePrincipal": {"clientId": "x"}}}
    assert merge_properties(template, own) == own
    more = {"azureAuth": {"arc": {"principalId": "y"}}}
    assert merge_properties(template, more)["azureAuth"] == {
        "method": "arc",
        "arc": {"location": "westeurope", "principalId": "y"},
    }


def test_maintenance_window_and_join_method_are_taken_whole() -> None:
    window = {"start": "22:00", "days": ["Monday"]}
    template = {
        "kubernetesAuth": {"method": "bootstrapToken"},
        "nodeConfig": {"updatePolicy": {"paused": True, "maintenanceWindow": window}},
    }
    own = {
        "kubernetesAuth": {"useAzureAuth": True},
        "nodeConfig": {"updatePolicy": {"maintenanceWindow": {"start": "04:00"}}},
    }
    assert merge_properties(template, own) == {
        "kubernetesAuth": {"useAzureAuth": True},
        "nodeConfig": {"updatePolicy": {"paused": True, "maintenanceWindow": {"start": "04:00"}}},
    }


def test_origins_name_labels_and_taints_unambiguously() -> None:
    template = {"nodeConfig": {"labels": {"example.com/site": "oslo"}, "maxPods": 50}}
    own = {"poolName": "edge", "nodeConfig": {"taints": [{"key": "example.com/a", "effect": "NoSchedule"}]}}
    shown, origins = explain(own, merge_properties(template, own), CONFIG)
    assert shown["nodeConfig"]["maxPods"] == 50
    assert "poolName" not in shown
    assert origins == {
        "continuousMonitoring": "default",
        "azureAuth.method": "default",
        "versions.kubernetes": "default",
        "versions.containerd": "default",
        "nodeConfig.maxPods": "pool",
        "nodeConfig.labels['example.com/site']": "pool",
        "nodeConfig.taints['example.com/a:NoSchedule']": "node",
        "kubernetesAuth.method": "default",
    }
