"""Tests of readiness checks with a simulated clock: wait, failure and its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from aks_flex_node.agent.cluster.client import ApiClient, ApiStatusError
from aks_flex_node.agent.cluster.readiness import NodeReadiness, ReadinessEnvironment
from aks_flex_node.errors import ClusterError, FlexError
from aks_flex_node.host.host import CommandResult, UnitState
from tests.client_certificates import client_pem
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import Answers, config_of
from tests.unit.agent.cluster.test_diagnosis import SWAP, UNAUTHORIZED

if TYPE_CHECKING:
    from tests.unit.agent.config.builders import Settings

NODE = "/api/v1/nodes/edge-1"
CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"
ACTIVE = {name: UnitState(name, exists=True, active="active") for name in ("containerd.service", "kubelet.service")}
OFFLINE = ClusterError("api-server-unreachable", "It cannot be reached.", retryable=True)


def document(status: str = "True", reported: str = "9999-01-01T00:00:00Z") -> dict[str, Any]:
    condition = {"type": "Ready", "status": status, "message": "words", "lastHeartbeatTime": reported}
    return {"metadata": {"name": "edge-1"}, "spec": {"podCIDR": "10.0.0.0/24"}, "status": {"conditions": [condition]}}


class Scene:
    """A host, an API server and a clock that advances on sleep."""

    def __init__(
        self,
        *answers: Any,
        units: dict[str, UnitState] | None = None,
        words: str = "",
        certified: bool = True,
        healthy: bool = True,
        seconds: float | None = None,
        values: Settings | None = None,
    ) -> None:
        argv = [("journalctl", "--unit", name, "--lines", "400", "--output", "cat", "--no-pager") for name in ACTIVE]
        files = {CERTIFICATE: client_pem()} if certified else {}
        self.host = RecordedHost(files, dict.fromkeys(argv, CommandResult(0, words)), {**ACTIVE, **(units or {})})
        self.api = Answers({("GET", NODE): list(answers) or [document()], ("GET", "/version"): [{}]})
        self.said: list[str] = []
        self.now = 0.0
        environment = ReadinessEnvironment(
            lambda: healthy, lambda: self.now, self.sleep, cast("ApiClient", self.api), lambda: 0.0
        )
        self.proof = NodeReadiness(self.host, config_of(values), "edge-1", self.said.append, environment, seconds)

    def sleep(self, seconds: float) -> None:
        self.now += max(1.0, seconds)

    def fails(self) -> FlexError:
        with pytest.raises(FlexError) as caught:
            self.prove()
        return caught.value

    def prove(self) -> None:
        self.proof.wait_registered()
        self.proof.wait_ready(lambda _: None)


def test_healthy_node_passes_all_readiness_steps_without_waiting() -> None:
    scene = Scene()
    assert scene.proof.wait_registered().name == "edge-1"
    assert scene.said == [
        "containerd is running",
        "the kubelet is healthy",
        "the cluster issued a certificate",
        "node edge-1 is registered",
    ]
    assert scene.now == 0.0


def test_temporarily_refused_certificate_is_not_an_azure_identity_error() -> None:
    by_identity: Settings = {"azure.managedIdentity.clientId": "x", "node.kubelet.auth": "certificate"}
    answers = [*[ApiStatusError(401, "Unauthorized", "")] * 20, document()]
    refused = 'E1115 06:00:01.1 1 reflector.go:205] "Failed to watch" err="failed to list *v1.Node: Unauthorized"'
    scene = Scene(*answers, words=refused, values=by_identity)
    assert scene.proof.wait_registered().name == "edge-1"
    without = Scene(*answers, words=refused, values=by_identity, certified=False)
    assert without.fails().name == "azure-identity-rejected"


def test_wait_ready_passes_each_observed_node_until_ready() -> None:
    scene, seen = Scene(document("False"), OFFLINE, ApiStatusError(401, "", ""), document()), list[bool]()
    assert scene.proof.wait_ready(lambda node: seen.append(node.ready)).ready
    assert seen == [False, True]


def test_ready_condition_from_before_the_restart_is_ignored() -> None:
    scene = Scene(document(reported="2001-01-01T00:00:00Z"), document())
    assert scene.proof.wait_ready(lambda _: None).reported.startswith("9999")


def test_kubelet_without_first_certificate_need_not_be_healthy() -> None:
    scene = Scene(certified=False, healthy=False)
    error = scene.fails()
    assert scene.said[:2] == ["containerd is running", "the kubelet is healthy"]
    assert error.name == "certificate-not-issued"


@pytest.mark.parametrize(
    ("scene", "name", "longest"),
    [
        (Scene(certified=False, words=UNAUTHORIZED), "bootstrap-token-rejected", 7),
        (
            Scene(
                healthy=False, words=SWAP, units={"kubelet.service": UnitState("kubelet.service", active="failed")}
            ),
            "service-failed",
            7,
        ),
        (Scene(units={"containerd.service": UnitState("c", active="failed")}), "service-failed", 7),
        (Scene(units={"containerd.service": UnitState("c")}), "node-not-registered", 62),
        (Scene(healthy=False), "node-not-ready", 62),
        (Scene(ApiStatusError(404, "", "")), "node-not-registered", 1000),
        (Scene(document("False")), "node-not-ready", 1000),
        (Scene(ClusterError("api-server-untrusted", "It is not trusted.")), "api-server-untrusted", 1),
    ],
    ids=lambda value: "" if isinstance(value, Scene) else str(value),
)
def test_readiness_timeout_names_the_cause(scene: Scene, name: str, longest: float) -> None:
    if name == "node-not-ready" and longest == 62:
        scene.api.answers["GET", NODE] = [document("False")]
    assert scene.fails().name == name
    assert scene.now <= longest


def test_readiness_names_an_unreachable_api_server_as_the_cause() -> None:
    scene = Scene(OFFLINE)
    scene.api.answers["GET", "/version"] = [OFFLINE]
    assert scene.fails().name == "api-server-unreachable"


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_readiness_waits_through_temporary_server_errors(status: int) -> None:
    scene = Scene(ApiStatusError(status, "", "not now"), document())
    assert scene.proof.wait_registered().name == "edge-1"


def test_long_wait_says_what_it_waits_for() -> None:
    scene = Scene(certified=False, words="dial tcp 198.51.100.1:443: connect: connection refused")
    scene.fails()
    waits = [line for line in scene.said if line.startswith("waiting since 2")]
    assert len(waits) == 1
    assert "the cluster did not issue a certificate yet" in waits[0]
    assert "connection refused" in waits[0]


def test_readiness_check_ends_within_its_time_limit() -> None:
    scene = Scene(document("False"), seconds=20.0)
    assert scene.fails().name == "node-not-ready"
    assert scene.now <= 22


def health_check_error(scene: Scene, *lacks: FlexError | None) -> FlexError:
    """Returns the error of a health check that finds these problems in turn; it must fail."""
    rest = list(lacks)
    with pytest.raises(FlexError) as caught:
        scene.proof.wait_healthy(lambda _: rest.pop(0) if len(rest) > 1 else rest[0])
    return caught.value


OTHER = ClusterError("kubelet-version-mismatch", "It shows another version.")


def test_wait_healthy_waits_until_the_additional_check_passes() -> None:
    scene, rest = Scene(seconds=60.0), [OTHER, OTHER, None]
    assert scene.proof.wait_healthy(lambda _: rest.pop(0)).ready
    assert rest == []


def test_wait_healthy_fails_with_the_remaining_problem() -> None:
    assert health_check_error(Scene(seconds=60.0), OTHER) is OTHER


def test_wait_healthy_reports_node_not_ready_before_other_problems() -> None:
    assert health_check_error(Scene(document(), document("False"), seconds=60.0), OTHER).name == "node-not-ready"


def test_wait_healthy_reports_unreachable_server_before_other_problems() -> None:
    scene = Scene(OFFLINE, seconds=60.0)
    scene.api.answers["GET", "/version"] = [OFFLINE]
    assert health_check_error(scene, OTHER).name == "api-server-unreachable"


def test_wait_healthy_requires_minimum_kubelet_uptime() -> None:
    scene = Scene(seconds=60.0)
    scene.proof.wait_healthy(lambda _: None)
    assert 5.0 <= scene.now <= 7.0


@pytest.mark.parametrize(
    ("started", "other", "name"), [(1e9, None, "service-failed"), (-60.0, OTHER, OTHER.name)], ids=["new", "old"]
)
def test_wait_healthy_fails_for_new_restarts_of_the_kubelet(
    started: float, other: FlexError | None, name: str
) -> None:
    kubelet = UnitState("kubelet.service", active="active", restarts=4, started=started)
    scene = Scene(units={"kubelet.service": kubelet}, words=SWAP, seconds=20.0)
    assert health_check_error(scene, other).name == name


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        (Scene(), ""),
        (Scene(healthy=False), "The kubelet is not healthy"),
        (Scene(units={"containerd.service": UnitState("containerd.service")}), "Containerd is not running"),
    ],
    ids=lambda value: "" if isinstance(value, Scene) else str(value),
)
def test_local_problem_is_reported_without_asking_the_cluster(scene: Scene, words: str) -> None:
    error = scene.proof.local_problem()
    assert (error is None) is (not words)
    assert error is None or words in error.message


@pytest.mark.parametrize(
    ("values", "told"),
    [({}, True), ({"provider.url": "https://rp.example:8443"}, False)],
    ids=str,
)
def test_taint_commands_are_printed_only_without_a_provider(values: Settings, told: bool) -> None:
    scene = Scene(values={**values, "node.taints": ["edge=true:NoSchedule"]})
    scene.proof.sync_labels(scene.proof.wait_registered(), {}, frozenset())
    assert any("kubectl taint nodes edge-1 edge=true:NoSchedule" in line for line in scene.said) is told
