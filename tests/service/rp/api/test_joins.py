"""How far a node has come in joining, as its cluster's watch tells it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.clusters.taints import DesiredTaints
from tests.service.rp.api.bodies import principal, token
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from aks_flex_rp.nodes.join_tracker import JoinTracker
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running

READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "kubeletVersion": "v1.34.4"}


class Watch:
    """What the cluster's watch would see of one node."""

    def __init__(self, service: Running, name: str, body: dict[str, Any] | None = None) -> None:
        self.service, self.name = service, name
        self.url = service.admin.put(name, body or token(), url=True).properties["configUrl"]
        self.token = next(each for each, (node, _) in service.clusters.tokens.items() if node == name)

    @property
    def joins(self) -> JoinTracker:
        return self.service.service.join_tracker

    def sees(self, what: str, *words: Any) -> None:
        self.service.call(getattr(self.joins, what)(PLANT.key, self.name, *words))

    def attempts(self, csr: str = "csr-1") -> None:
        self.sees("on_token_csr", self.token, csr)

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.service.admin.get(self.name).properties["status"]
        return found

    def events(self, api: Api) -> list[str]:
        return [each["what"] for each in reversed(api.audit(self.name).json["value"])]


@pytest.fixture
def watch(service: Running, name: str) -> Watch:
    return Watch(service, name)


def test_a_node_joins_step_by_step(watch: Watch, admin: Api) -> None:
    assert watch.status["joinState"] == "Created"
    admin.fetch(watch.url)
    assert watch.status["joinState"] == "ConfigFetched"
    watch.attempts()
    assert watch.status["joinState"] == "BootstrapAttempted"
    watch.sees("on_token_certificate", watch.token, "csr-1")
    watch.sees("on_node_observed", READY)
    assert watch.status["joinState"] == "Joined"

    joined = ["create", "configUrl.fetched", "token.used", "certificate.issued", "node.joined"]
    assert watch.events(admin) == joined


def test_what_is_told_twice_counts_once(watch: Watch, admin: Api) -> None:
    for _ in range(2):
        watch.attempts()
    for _ in range(2):
        watch.sees("on_token_certificate", watch.token, "csr-1")
    for _ in range(2):
        watch.sees("on_node_observed", READY)

    assert watch.events(admin) == ["create", "token.used", "certificate.issued", "node.joined"]


def test_no_step_of_joining_changes_the_configuration(watch: Watch, admin: Api) -> None:
    before = admin.get(watch.name)

    watch.attempts()
    watch.sees("on_token_certificate", watch.token, "csr-1")
    watch.sees("on_node_observed", READY)

    assert admin.get(watch.name).headers["etag"] == before.headers["etag"]


def test_a_refused_certificate_is_a_failure_that_says_what_to_do(watch: Watch, admin: Api) -> None:
    watch.sees("on_csr_denied", watch.token, "csr-2", "It is for another node.")
    watch.sees("on_token_failed", watch.token, "It is for another node.")

    assert watch.status["joinState"] == "Failed"
    assert "It is for another node." in watch.status["joinFailure"]
    assert "regenerateToken" in watch.status["joinFailure"]
    [event] = admin.audit(watch.name, what="certificate.denied").json["value"]
    assert (event["outcome"], event["detail"]["csr"]) == ("denied", "csr-2")


def test_a_token_of_the_past_lets_nobody_in_and_leaves_the_new_url_alone(watch: Watch, admin: Api) -> None:
    old, url = watch.token, admin.regenerate(watch.name).json["configUrl"]

    assert watch.service.call(watch.joins.on_token_csr(PLANT.key, watch.name, old, "csr-1")) is False

    assert watch.status["joinState"] == "Created"
    assert admin.fetch(url).status == 200
    assert watch.service.call(watch.joins.on_token_csr(PLANT.key, "nobody", old, "csr-1")) is False


def test_a_second_machine_with_the_same_bundle_does_not_disturb_the_first(watch: Watch, admin: Api) -> None:
    watch.attempts()

    watch.sees("on_csr_denied", watch.token, "csr-2", "The token was used already.")

    assert watch.status["joinState"] == "BootstrapAttempted"
    assert "joinFailure" not in watch.status
    assert watch.events(admin)[-1] == "certificate.denied"


def test_a_join_that_came_to_nothing_is_told_and_a_new_token_begins_anew(watch: Watch, admin: Api) -> None:
    watch.attempts()
    watch.sees("on_token_failed", watch.token, "No certificate was issued in time.")
    assert watch.status["joinState"] == "Failed"

    admin.regenerate(watch.name)

    assert watch.status["joinState"] == "Created"
    assert "joinFailure" not in watch.status


def test_what_an_old_token_does_is_not_the_nodes_any_more(watch: Watch, admin: Api) -> None:
    admin.regenerate(watch.name)

    watch.attempts()
    watch.sees("on_token_failed", watch.token, "It expired.")
    watch.sees("on_token_certificate", watch.token, "csr-1")

    assert watch.status["joinState"] == "Created"


def test_only_the_token_that_counts_is_expected(watch: Watch, admin: Api) -> None:
    joins, call = watch.joins, watch.service.call
    assert call(joins.is_current_token(PLANT.key, watch.name, watch.token))

    admin.regenerate(watch.name)

    assert not call(joins.is_current_token(PLANT.key, watch.name, watch.token))
    assert call(joins.is_flex_node(PLANT.key, watch.name))
    admin.delete(watch.name)
    assert not call(joins.is_flex_node(PLANT.key, watch.name))


def test_a_refusal_for_nobodys_node_is_recorded_at_the_cluster(service: Running, admin: Api) -> None:
    service.call(service.service.join_tracker.on_csr_denied(PLANT.key, "", "abcdef", "csr-9", "Nobody's token."))

    assert any(each["detail"].get("csr") == "csr-9" for each in admin.audit().json["value"])


def test_a_node_that_joined_stays_so_when_it_is_changed(watch: Watch, admin: Api) -> None:
    watch.attempts()
    watch.sees("on_token_certificate", watch.token, "csr-1")
    watch.sees("on_node_observed", READY)

    admin.put(watch.name, token(maxPods=9))

    assert watch.status["joinState"] == "Joined"


def test_a_node_that_left_its_cluster_is_no_longer_joined(watch: Watch) -> None:
    watch.attempts()
    watch.sees("on_token_certificate", watch.token, "csr-1")
    watch.sees("on_node_observed", READY)

    watch.sees("on_node_observed", None)

    assert watch.status["joinState"] == "Created"
    [ready] = watch.status["conditions"]
    assert (ready["status"], ready["reason"]) == ("Unknown", "NodeNotInCluster")


def test_the_cluster_says_how_a_node_is_that_is_not_monitored(watch: Watch) -> None:
    watch.attempts()
    watch.sees("on_node_observed", READY)

    [ready] = watch.status["conditions"]
    assert (ready["status"], ready["reason"]) == ("True", "KubeletReady")
    assert watch.status["kubeletVersion"] == "v1.34.4"


def test_of_a_monitored_node_its_agent_says_how_it_is(service: Running, name: str) -> None:
    watch = Watch(service, name, principal())
    service.admin.report(name, {"conditions": [{"type": "Ready", "status": "False"}]})
    watch.attempts()

    watch.sees("on_node_observed", {**READY, "lastHeartbeatTime": "2100-01-01T00:00:00Z"})

    assert watch.status["conditions"][0]["status"] == "False"
    assert watch.status["joinState"] == "Joined"


def test_when_a_node_was_deleted_is_known_until_it_is_made_again(watch: Watch, admin: Api) -> None:
    def deleted() -> float | None:
        return watch.service.call(watch.joins.deletion_time(PLANT.key, watch.name))

    assert deleted() is None
    admin.delete(watch.name)
    assert deleted() == pytest.approx(time.time(), abs=60)
    admin.put(watch.name, token())
    assert deleted() is None
    assert watch.service.call(watch.joins.deletion_time(PLANT.key, "never-there")) is None


def test_that_the_service_took_a_node_out_of_its_cluster_is_in_the_audit(watch: Watch, admin: Api) -> None:
    admin.delete(watch.name)
    watch.sees("on_node_removed")

    assert watch.events(admin)[-2:] == ["delete", "node.removed"]


def test_the_watch_knows_the_taints_of_a_node_and_its_former_ones(watch: Watch, admin: Api) -> None:
    def taints() -> DesiredTaints | None:
        return watch.service.call(watch.joins.desired_taints(PLANT.key, watch.name))

    one, other = ({"key": key, "effect": "NoSchedule"} for key in ("one", "other"))
    admin.put(watch.name, token(taints=[one]))
    assert taints() == DesiredTaints((one,))
    admin.put(watch.name, token(taints=[other]))
    admin.regenerate(watch.name)
    assert taints() == DesiredTaints((other,), frozenset({("one", "NoSchedule")}))
    admin.delete(watch.name)
    assert taints() is None


def test_the_watch_knows_where_nodes_find_the_api_server_beside_its_usual_address(watch: Watch, admin: Api) -> None:
    def servers() -> frozenset[str]:
        return watch.service.call(watch.joins.api_server_urls(PLANT.key))

    assert "https://10.77.0.4" not in servers()
    admin.put(watch.name, token(kubelet={"serverURL": "https://10.77.0.4"}))
    assert "https://10.77.0.4" in servers()
    admin.delete(watch.name)
    assert "https://10.77.0.4" not in servers()
