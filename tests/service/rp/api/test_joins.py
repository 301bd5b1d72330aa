"""Tests of a node's join state, as the watch of its cluster reports it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.clusters.taints import DesiredTaints
from tests.service.rp.api.bodies import principal, token
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.keyed_nodes import HEARD_LATE, READY, NodeWithKey

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running


class Watch(NodeWithKey):
    """Simulates the cluster's watch of one node."""

    def __init__(self, service: Running, name: str, body: dict[str, Any] | None = None) -> None:
        super().__init__(service, name, body or token())
        self.token = next(each for each, (node, _) in service.clusters.tokens.items() if node == name)

    def asks(self, what: str, *words: Any, node: str = "") -> Any:
        return self.service.call(getattr(self.service.tracker, what)(PLANT.key, node or self.name, *words))

    def sees(self, what: str, *words: Any) -> None:
        self.asks(what, *words)

    def attempts(self) -> None:
        self.sees("on_token_csr", self.token, "csr-1")

    def certified(self) -> None:
        self.sees("on_token_certificate", self.token, "csr-1")

    def joined_by_token(self) -> None:
        self.attempts()
        self.certified()
        self.sees("on_node_observed", READY)

    @property
    def state(self) -> Any:
        return self.status["joinState"]

    @property
    def audited(self) -> list[str]:
        return [each["what"] for each in reversed(self.admin.events(self.name))]


@pytest.fixture
def watch(service: Running, name: str) -> Watch:
    return Watch(service, name)


def test_join_state_advances_with_each_join_step_and_keeps_the_etag(watch: Watch, admin: Api) -> None:
    etag = admin.get(watch.name).headers["etag"]
    assert watch.state == "Created"
    admin.fetch(watch.url)
    assert watch.state == "ConfigFetched"
    watch.attempts()
    assert watch.state == "BootstrapAttempted"
    watch.certified()
    watch.sees("on_node_observed", READY)
    assert watch.state == "Joined"

    assert admin.get(watch.name).headers["etag"] == etag
    joined = ["create", "key.bound", "configUrl.fetched", "token.used", "certificate.issued", "node.joined"]
    assert watch.audited == joined


def test_repeated_join_events_are_audited_once(watch: Watch, admin: Api) -> None:
    for step in (watch.attempts, watch.certified, lambda: watch.sees("on_node_observed", READY)):
        step()
        step()

    assert watch.audited == ["create", "token.used", "certificate.issued", "node.joined"]


def test_refused_certificate_fails_join_with_remediation(watch: Watch, admin: Api) -> None:
    watch.sees("on_csr_denied", watch.token, "csr-2", "It is for another node.")
    watch.sees("on_token_failed", watch.token, "It is for another node.")

    assert watch.state == "Failed"
    assert "It is for another node." in watch.status["joinFailure"]
    assert "regenerateToken" in watch.status["joinFailure"]
    [event] = admin.events(watch.name, "certificate.denied")
    assert (event["outcome"], event["detail"]["csr"]) == ("denied", "csr-2")


def test_departed_node_is_shown_as_left_and_can_join_again(watch: Watch, admin: Api) -> None:
    admin.report(watch.name, {"conditions": [{"type": "Ready", "status": "True"}]})
    watch.joined_by_token()
    watch.sees("on_node_observed", None)

    assert watch.state == "Left"
    [ready] = watch.status["conditions"]
    assert (ready["status"], ready["reason"]) == ("Unknown", "NodeNotInCluster")

    admin.fetch(admin.new_url(watch.name))
    assert watch.state == "ConfigFetched"


def test_update_of_unmonitored_node_says_what_to_run_on_the_machine(watch: Watch, admin: Api) -> None:
    def pending(properties: dict[str, Any]) -> list[dict[str, str]]:
        return [each for each in properties["status"]["conditions"] if each["type"] == "ConfigurationPending"]

    assert pending(admin.put(watch.name, token(), url=True).properties) == []
    watch.sees("on_node_observed", HEARD_LATE)
    assert watch.state == "Joined"
    assert pending(admin.put(watch.name, token()).properties) == [], "nothing changed"

    written = admin.put(watch.name, token(labels={"tier": "gold"})).properties

    [condition] = pending(written)
    assert (condition["status"], condition["reason"]) == ("True", "NotMonitored")
    assert f"aks-flex-rp node join-command --name {watch.name}" in condition["message"]
    assert written["status"]["cause"] == condition["message"]
    admin.fetch(admin.new_url(watch.name))
    assert pending(admin.get(watch.name).properties) == []


def test_revoked_bootstrap_token_is_rejected_and_new_config_url_works(watch: Watch, admin: Api) -> None:
    old, url = watch.token, admin.new_url(watch.name)

    assert watch.asks("on_token_csr", old, "csr-1") is False

    assert watch.state == "Created"
    assert admin.fetch(url).status == 200
    assert watch.asks("on_token_csr", old, "csr-1", node="nobody") is False


def test_second_machine_with_same_bundle_does_not_fail_first_join(watch: Watch, admin: Api) -> None:
    watch.attempts()

    watch.sees("on_csr_denied", watch.token, "csr-2", "The token was used already.")

    assert watch.state == "BootstrapAttempted"
    assert "joinFailure" not in watch.status
    assert watch.audited[-1] == "certificate.denied"


def test_only_current_bootstrap_token_is_expected(watch: Watch, admin: Api) -> None:
    assert watch.asks("is_current_token", watch.token)

    admin.regenerate(watch.name)

    assert not watch.asks("is_current_token", watch.token)
    assert watch.asks("is_flex_node")
    admin.delete(watch.name)
    assert not watch.asks("is_flex_node")


def test_refusal_without_node_is_audited_at_cluster(service: Running, admin: Api) -> None:
    service.call(service.tracker.on_csr_denied(PLANT.key, "", "abcdef", "csr-9", "Nobody's token."))

    assert any(each["detail"].get("csr") == "csr-9" for each in admin.events())


def test_ready_condition_of_unmonitored_node_is_set_by_cluster(watch: Watch) -> None:
    watch.attempts()
    watch.sees("on_node_observed", READY)

    [ready] = watch.status["conditions"]
    assert (ready["status"], ready["reason"]) == ("True", "KubeletReady")
    assert watch.status["kubeletVersion"] == "v1.34.4"


def test_ready_condition_of_monitored_node_is_set_by_agent(service: Running, name: str) -> None:
    watch = Watch(service, name, principal())
    service.admin.report(name, {"conditions": [{"type": "Ready", "status": "False"}]})
    watch.attempts()

    watch.sees("on_node_observed", HEARD_LATE)

    assert watch.status["conditions"][0]["status"] == "False"
    assert watch.state == "Joined"


def test_deletion_time_is_known_until_node_is_created_again(watch: Watch, admin: Api) -> None:
    assert watch.asks("deletion_time") is None
    admin.delete(watch.name)
    assert watch.asks("deletion_time") == pytest.approx(time.time(), abs=60)
    admin.put(watch.name, token())
    assert watch.asks("deletion_time") is None
    assert watch.asks("deletion_time", node="never-there") is None


def test_removal_of_node_from_cluster_is_audited(watch: Watch, admin: Api) -> None:
    admin.delete(watch.name)
    watch.sees("on_node_removed")

    assert watch.audited[-2:] == ["delete", "node.removed"]


def test_join_tracker_returns_current_and_former_taints_of_node(watch: Watch, admin: Api) -> None:
    one, other = ({"key": key, "effect": "NoSchedule"} for key in ("one", "other"))
    admin.put(watch.name, token(taints=[one]))
    assert watch.asks("desired_taints") == DesiredTaints((one,))
    admin.put(watch.name, token(taints=[other]))
    admin.regenerate(watch.name)
    assert watch.asks("desired_taints") == DesiredTaints((other,), frozenset({("one", "NoSchedule")}))
    admin.delete(watch.name)
    assert watch.asks("desired_taints") is None


def test_join_tracker_returns_custom_api_server_urls_of_nodes(watch: Watch, admin: Api) -> None:
    tracker, call = watch.service.tracker, watch.service.call

    def servers() -> frozenset[str]:
        return call(tracker.api_server_urls(PLANT.key))

    assert "https://10.77.0.4" not in servers()
    admin.put(watch.name, token(kubelet={"serverURL": "https://10.77.0.4"}))
    assert "https://10.77.0.4" in servers()
    admin.delete(watch.name)
    assert "https://10.77.0.4" not in servers()


def report_failure(admin: Api, url: str, document: dict[str, Any]) -> int:
    path = admin.connection.path_of(url)
    headers = {"Content-Type": "application/json"}
    return admin.connection.ask("POST", path, headers, json.dumps(document).encode()).status


PREFLIGHT = {"joinState": "Failed", "joinFailure": "Preflight found 1 problem:\ndisk: 2 GiB free."}


def test_failed_preflight_is_reported_with_the_config_url(watch: Watch, admin: Api) -> None:
    admin.fetch(watch.url)
    assert report_failure(admin, watch.url, PREFLIGHT) == 200

    assert (watch.state, watch.status["joinFailure"]) == ("Failed", PREFLIGHT["joinFailure"])
    [event] = [each for each in admin.events(watch.name) if each["what"] == "join.failed"]
    assert (event["who"], event["detail"]["why"]) == ("bearer of the URL", PREFLIGHT["joinFailure"])


def test_join_continues_after_a_failed_preflight_was_fixed(watch: Watch, admin: Api) -> None:
    admin.fetch(watch.url)
    report_failure(admin, watch.url, PREFLIGHT)

    assert admin.fetch(watch.url).status == 200  # the same URL is still valid
    assert watch.state == "ConfigFetched"
    assert "joinFailure" not in watch.status
    watch.attempts()
    assert watch.state == "BootstrapAttempted"


@pytest.mark.parametrize(
    "document",
    [{}, {"joinState": "Failed"}, {"joinState": "Joined", "joinFailure": "x"}, {"conditions": []}, {"unknown": 1}],
    ids=str,
)
def test_report_to_a_config_url_can_only_be_a_failed_join(watch: Watch, admin: Api, document: dict[str, Any]) -> None:
    assert report_failure(admin, watch.url, document) == 400
    assert watch.state == "Created"


def test_used_config_url_accepts_no_report(watch: Watch, admin: Api) -> None:
    watch.attempts()
    assert report_failure(admin, watch.url, PREFLIGHT) == 404
    assert watch.state == "BootstrapAttempted"


AT = "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("version", "at", "shown"),
    [
        ("1700000000", AT, True),
        ("99999999999", AT, False),  # newer than the resource
        ("1700000000", "soon", False),
        ("<script>", AT, False),
        ("", "", False),
    ],
)
def test_bootstrap_only_node_reports_its_applied_config(
    watch: Watch, admin: Api, version: str, at: str, shown: bool
) -> None:
    watch.attempts()
    watch.sees("on_node_observed", {**READY, "appliedConfigVersion": version, "lastConfigApplied": at})

    expected = {"appliedConfigVersion": version, "lastConfigApplied": at} if shown else {}
    listed = next(each for each in admin.list().json["value"] if each["name"] == watch.name)
    for status in (watch.status, listed["properties"]["status"]):
        assert {
            key: status[key] for key in ("appliedConfigVersion", "lastConfigApplied") if key in status
        } == expected


def test_report_of_a_daemon_precedes_the_applied_config_on_the_node(service: Running, name: str) -> None:
    watch = Watch(service, name, principal())
    seen = {**READY, "appliedConfigVersion": "1700000000", "lastConfigApplied": AT}
    watch.sees("on_node_observed", seen)
    assert watch.status["appliedConfigVersion"] == "1700000000"  # joined with --bootstrap-only: no daemon reports
    service.admin.report(name, {"appliedConfigVersion": "1700000001"})
    watch.sees("on_node_observed", seen)
    assert watch.status["appliedConfigVersion"] == "1700000001"
