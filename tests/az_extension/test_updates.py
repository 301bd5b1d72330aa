"""Tests of updates: only the given settings change, concurrent changes are kept, and each option has its effect."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.api.node_changes import NodeOptions, apply_options
from tests.az_extension.commands import flex, ran, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.az_extension.harness import Site
    from tests.az_extension.recording_proxy import Between
    from tests.az_extension.warm_az import WarmAz

CLIENT = "11111111-2222-3333-4444-555555555555"
BEFORE: dict[str, Any] = {
    "nodeConfig": {
        "labels": {"site": "north", "rack": "7"},
        "taints": [{"key": "edge", "value": "yes", "effect": "NoSchedule"}],
        "maxPods": 50,
    },
    "versions": {"kubernetes": "1.33.9"},
}


def test_update_changes_only_given_settings(az: WarmAz, site: Site, name: str) -> None:
    site.admin.put(name, {"properties": BEFORE})
    flex(az, "update", "--name", name, "--labels", "rack-", "row=2", "--drift-policy", "log", "--pause")
    properties = site.admin.get(name).properties
    assert properties["versions"] == BEFORE["versions"]
    assert properties["nodeConfig"] == {
        **BEFORE["nodeConfig"],
        "labels": {"site": "north", "row": "2"},
        "driftPolicy": "log",
        "updatePolicy": {"paused": True},
    }
    flex(az, "update", "--name", name, "--pause", "false", "--taints", "edge:NoSchedule-")
    node = site.admin.get(name).properties["nodeConfig"]
    assert (node["updatePolicy"], node.get("taints")) == ({"paused": False}, None)


def test_update_can_remove_last_setting_of_section(az: WarmAz, site: Site, name: str) -> None:
    site.admin.put(name, {"properties": {"nodeConfig": {"kubelet": {"serverURL": "https://10.0.0.4:443"}}}})
    flex(az, "update", "--name", name, "--server-url", "")
    assert "kubelet" not in site.admin.get(name).properties.get("nodeConfig", {})


def test_update_without_changes_writes_nothing(az: WarmAz, site: Site, name: str) -> None:
    before = site.admin.put(name, {"properties": BEFORE}).json["etag"]
    done = ran(az, "update", "--name", name, "--max-pods", "50")
    assert "No changes." in done.err
    assert site.admin.get(name).json["etag"] == before


def test_kubernetes_downgrade_requires_allow_downgrade(az: WarmAz, site: Site, name: str) -> None:
    site.admin.put(name, {"properties": BEFORE})
    older = ("update", "--name", name, "--kubernetes-version", "1.32.1")
    assert "--kubernetes-version: properties.versions.kubernetes: " in refused(az, *older)
    ran(az, *older, "--allow-downgrade")
    assert site.admin.get(name).properties["versions"] == {"kubernetes": "1.32.1"}


def test_update_warns_that_earlier_config_url_no_longer_works(az: WarmAz, site: Site, name: str) -> None:
    site.admin.put(name, {"properties": BEFORE})
    told = ran(az, "update", "--name", name, "--max-pods", "60")
    assert "A previous configuration URL is revoked." in told.err


@pytest.fixture
def meanwhile(site: Site, between: Between, name: str) -> Callable[..., None]:
    """Returns a function that changes the node between az's read and its write, the given number of times."""

    def write(settings: dict[str, Any]) -> None:
        body = {**BEFORE, "nodeConfig": {**BEFORE["nodeConfig"], **settings}}
        assert site.admin.put(name, {"properties": body}).status in {200, 201}

    def plan(settings: dict[str, Any], times: int = 1) -> None:
        write({})
        between.meanwhile += [lambda: write(settings)] * times

    return plan


def test_update_is_retried_after_concurrent_change_of_other_setting(
    az: WarmAz, site: Site, between: Between, meanwhile: Callable[..., None], name: str
) -> None:
    meanwhile({"maxPods": 60})
    flex(az, "update", "--name", name, "--labels", "rack=8", "--rp-endpoint", between.url)
    node = site.admin.get(name).properties["nodeConfig"]
    assert (node["maxPods"], node["labels"]) == (60, {"site": "north", "rack": "8"})


def test_update_fails_on_concurrent_change_of_same_setting(
    az: WarmAz, site: Site, between: Between, meanwhile: Callable[..., None], name: str
) -> None:
    meanwhile({"labels": {"site": "north", "rack": "9"}})
    words = ("update", "--name", name, "--labels", "rack=8", "--rp-endpoint", between.url)
    assert f"Another client changed the flex node {name} at the same time: nodeConfig.labels.rack." in refused(
        az, *words
    )
    assert site.admin.get(name).properties["nodeConfig"]["labels"]["rack"] == "9"


def test_update_fails_after_repeated_concurrent_changes(
    az: WarmAz, between: Between, meanwhile: Callable[..., None], name: str
) -> None:
    meanwhile({"maxPods": 60}, times=4)
    words = ("update", "--name", name, "--labels", "rack=8", "--rp-endpoint", between.url)
    message = refused(az, *words)
    assert "(PreconditionFailed)" in message
    assert "Another client changes the node." in message


EFFECTS = {
    "labels and taints": (
        "--labels a=1 rack- b= --taints edge- spot:NoExecute x=y:NoSchedule",
        NodeOptions(labels=("a=1", "rack-", "b="), taints=("edge-", "spot:NoExecute", "x=y:NoSchedule")),
    ),
    "numbers and policies": (
        "--max-pods 10 --drift-policy repair --pause false",
        NodeOptions(max_pods=10, drift_policy="repair", pause=False),
    ),
    "versions": (
        "--containerd-version 2.4.2 --kubernetes-version 1.34.4 --agent-version 0.1.0",
        NodeOptions(containerd_version="2.4.2", kubernetes_version="1.34.4", agent_version="0.1.0"),
    ),
    "settings that are removed": (
        "--kubernetes-version '' --unset nodeConfig.maxPods nodeConfig.taints",
        NodeOptions(kubernetes_version="", unset=("nodeConfig.maxPods", "nodeConfig.taints")),
    ),
    "a managed identity that is followed": (
        f"--auth-method managedIdentity --client-id {CLIENT} --continuous-monitoring",
        NodeOptions(auth_method="managedIdentity", client_id=CLIENT, continuous_monitoring=True),
    ),
    "an Arc machine whose kubelet gets a certificate": (
        f"--auth-method arc --principal-id {CLIENT} --kubernetes-auth certificate",
        NodeOptions(auth_method="arc", principal_id=CLIENT, kubernetes_auth="certificate"),
    ),
    "maintenance window and drain": (
        "--window-start 22:00 --window-days Saturday Sunday --window-minutes 90 --window-time-zone Europe/Berlin "
        "--drain false --drain-timeout 60 --health-timeout 120",
        NodeOptions(
            window_start="22:00",
            window_days=("Saturday", "Sunday"),
            window_minutes=90,
            window_time_zone="Europe/Berlin",
            drain=False,
            drain_timeout=60,
            health_timeout=120,
        ),
    ),
    "kubelet settings": (
        "--kubelet-settings podPidsLimit=100 kubeReserved.cpu=100m evictionHard.memory.available=5%",
        NodeOptions(
            kubelet_settings=("podPidsLimit=100", "kubeReserved.cpu=100m", "evictionHard.memory.available=5%")
        ),
    ),
    "another address of the API server, behind a VPN": (
        "--server-url https://10.0.0.4:443 --vpn",
        NodeOptions(server_url="https://10.0.0.4:443", vpn=True),
    ),
}


@pytest.mark.parametrize("case", EFFECTS)
def test_update_option_changes_its_properties(az: WarmAz, site: Site, name: str, case: str) -> None:
    words, said = EFFECTS[case]
    site.admin.put(name, {"properties": BEFORE})
    written = flex(az, "update", "--name", name, *shlex.split(words))["properties"]
    wanted = apply_options(BEFORE, said)
    assert {key: written.get(key) for key in {**BEFORE, **wanted}} == {
        key: wanted.get(key) for key in BEFORE
    } | wanted


def test_client_id_is_removed_without_a_question_for_the_secret(az: WarmAz, site: Site, name: str) -> None:
    identity = {"clientId": CLIENT, "principalId": CLIENT}
    site.admin.put(name, {"properties": {"azureAuth": {"method": "managedIdentity", "managedIdentity": identity}}})
    flex(az, "update", "--name", name, "--client-id", "")
    assert site.admin.get(name).properties["azureAuth"]["managedIdentity"] == {"principalId": CLIENT}
    principal = {"clientId": CLIENT, "clientSecret": "s3cret"}
    site.admin.put(name, {"properties": {"azureAuth": {"method": "servicePrincipal", "servicePrincipal": principal}}})
    assert "properties.azureAuth.servicePrincipal" in refused(az, "update", "--name", name, "--client-id", "")


def test_generic_update_sets_adds_and_removes_by_path(az: WarmAz, site: Site, name: str) -> None:
    site.admin.put(name, {"properties": {"nodeConfig": {"maxPods": 50, "labels": {"site": "north"}}}})
    words = (
        "--set properties.nodeConfig.kubelet.podPidsLimit=100 properties.versions.runc=1.5.2 "
        "--add properties.nodeConfig.taints key=edge effect=NoSchedule --remove properties.nodeConfig.maxPods"
    )
    written = flex(az, "update", "--name", name, *words.split())["properties"]
    assert written["nodeConfig"] == {
        "labels": {"site": "north"},
        "taints": [{"key": "edge", "effect": "NoSchedule"}],
        "kubelet": {"podPidsLimit": 100},
    }
    assert written["versions"] == {"runc": "1.5.2"}
    removed = flex(az, "update", "--name", name, "--remove", "properties.nodeConfig.taints", "0")["properties"]
    assert removed["nodeConfig"].get("taints", []) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "properties.status.joinState=Joined"), "Couldn't find 'status'"),
        (("--set", "properties.configVersion=1"), "properties.configVersion cannot be changed."),
        (("--set", "name=other"), "name cannot be changed."),
        (("--set", "nodeConfig.maxPods=5"), "Couldn't find 'nodeConfig'"),
        (("--remove", "properties.nodeConfig.maxPods"), "--remove"),
        (("--set", "properties.nodeConfig.maxPods=many"), ") properties.nodeConfig.maxPods: "),
    ],
)
def test_invalid_generic_update_is_refused_with_its_path(
    az: WarmAz, site: Site, name: str, words: tuple[str, ...], said: str
) -> None:
    site.admin.put(name)
    assert said in refused(az, "update", "--name", name, *words)


def test_update_of_unmanaged_node_warns_that_it_is_not_applied(
    az: WarmAz, site: Site, between: Between, name: str
) -> None:
    written = site.admin.put(name).json
    written["properties"]["status"]["joinState"] = "Joined"
    answer = (200, {"Content-Type": "application/json"}, written)
    between.answers += [answer, answer]
    words = ("update", "--name", name, "--labels", "rack=8", "--rp-endpoint", between.url)
    done = ran(az, *words)
    assert f"{name} is not managed, so the change is not applied on its machine automatically." in done.err
    assert "`az aks flex-node join-command`" in done.err


def test_managed_node_of_a_pool_stays_managed_without_it(az: WarmAz, site: Site, between: Between, name: str) -> None:
    found = site.admin.put(name).json
    found["properties"] |= {"poolName": "edge", "effective": {"continuousMonitoring": True}}
    found["properties"]["status"]["joinState"] = "Joined"
    found["properties"].pop("continuousMonitoring", None)
    headers = {"Content-Type": "application/json"}
    words = ("update", "--name", name, "--rp-endpoint", between.url)
    between.answers += [(200, headers, found), (200, headers, found)]
    assert "is not managed" not in ran(az, *words, "--labels", "rack=8").err

    left = {**found, "properties": {**found["properties"], "continuousMonitoring": True}}
    between.answers += [(200, headers, found), (200, headers, left)]
    assert f"{name} stays managed, as in the pool edge" in ran(az, *words, "--pool", "").err
