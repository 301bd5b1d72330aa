"""Tests of the requests about a flex node pool against the lab's Azure, and of each error."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from azure.mgmt.containerservice import models

from aks_flex_node.agent.aks_pool import machine_document
from aks_flex_node.agent.aks_pool.machine_document import MachineSettings
from aks_flex_node.agent.aks_pool.pool_client import AksPoolClient, open_pool
from aks_flex_node.agent.aks_pool.pool_ids import PoolId, parse_pool_id
from aks_flex_node.azure.arm import ArmReply, AzureCallError, refused_error
from aks_flex_node.errors import FlexError
from tests.service.agent.identity.test_credentials import bundle
from tests.service.lab.sdk_contract import problems
from tests.unit.agent.config.builders import load_plain, node_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.settings.models import NodeConfig
    from tests.service.lab.pool_harness import Aks

AGENT_ROLE = "8f139b0f-7eaf-460b-a9da-5b1246d9ed0d"
CONTRIBUTOR = "ed7f3fbd-7b88-4dd4-9017-9adb7ce333f8"
SETTINGS = MachineSettings("1.35.4", 60, {"site": "a"}, ("edge=yes:NoSchedule",))


def pool_of(aks: Aks, name: str = "edge") -> PoolId:
    return parse_pool_id(f"{aks.id}/agentPools/{name}")


def signed_in(aks: Aks, role: str, scope: str = "", **azure: Any) -> NodeConfig:
    """Returns a configuration with a new service principal that has this role; none if it is empty."""
    principal = aks.cloud.directory.service_principal("edge", "right")
    if role:
        aks.cloud.assignments.put(scope or str(pool_of(aks)), role, principal.object_id)
    given = {"clientId": principal.client_id, "clientSecret": "right"}
    return load_plain(bundle(aks.cloud, servicePrincipal=given, authorityHost=aks.cloud.url, **azure)).config


@contextmanager
def client(aks: Aks, role: str = AGENT_ROLE, pool: str = "edge") -> Iterator[AksPoolClient]:
    with open_pool(signed_in(aks, role), pool_of(aks, pool)) as opened:
        yield opened


def test_bootstrap_data_of_a_pool_completes_a_configuration(aks: Aks) -> None:
    with client(aks) as opened:
        data = opened.bootstrap_data()
    config = node_config(data.settings)
    assert (config.kubernetes.version, config.node.max_pods, config.node.labels["site"]) == ("1.35.4", 60, "a")
    assert config.node.kubelet.server_url
    token_id = data.token.reveal().partition(".")[0]
    (secret,) = [each for each in aks.kubernetes.secrets if each["metadata"]["name"] == f"bootstrap-token-{token_id}"]
    assert secret


def test_machine_is_created_updated_and_read(aks: Aks) -> None:
    with client(aks) as opened:
        assert opened.find_machine("m1") is None
        made, operation = opened.put_machine("m1", SETTINGS, None, "host-1")
        assert operation
        made = opened.wait("m1", operation, lambda _: None)
        assert not machine_document.differs(SETTINGS, made)
        again, operation = opened.put_machine("m1", SETTINGS, made, "host-1")
        assert (again.etag, operation) == (made.etag, None)
        changed, _ = opened.put_machine("m1", MachineSettings("1.35.4", 61, {}, ()), made, "host-1")
        assert changed.etag != made.etag


def test_machine_that_changed_meanwhile_is_not_overwritten(aks: Aks) -> None:
    with client(aks) as opened:
        _, operation = opened.put_machine("m1", SETTINGS, None, "host-1")
        assert operation
        opened.wait("m1", operation, lambda _: None)
        with pytest.raises(AzureCallError) as caught:
            opened.put_machine("m1", SETTINGS, None, "host-1")
        assert caught.value.status == 412


def test_role_of_a_node_does_not_delete_machines(aks: Aks) -> None:
    with client(aks) as opened:
        _, operation = opened.put_machine("m1", SETTINGS, None, "host-1")
        assert operation
        opened.wait("m1", operation, lambda _: None)
        with pytest.raises(AzureCallError) as caught:
            opened.delete_machine("m1", lambda _: None)
    assert caught.value.name == "aks-pool-role-missing"
    assert "Contributor" in caught.value.hint
    with client(aks, CONTRIBUTOR) as opened:
        assert opened.delete_machine("m1", lambda _: None) is True
        assert opened.delete_machine("m1", lambda _: None) is False


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"pool": "absent"}, "aks-pool-not-found"),
        ({"cluster": "absent"}, "aks-pool-not-found"),
        ({"pool": "system"}, "aks-pool-request-invalid"),
    ],
)
def test_wrong_pool_is_named_with_the_command_to_check(aks: Aks, change: dict[str, str], name: str) -> None:
    pool = PoolId(**{**vars(pool_of(aks)), **change})
    group = f"/subscriptions/{pool.subscription}/resourceGroups/{pool.group}"
    with open_pool(signed_in(aks, CONTRIBUTOR, group), pool) as opened, pytest.raises(AzureCallError) as caught:
        opened.bootstrap_data()
    assert caught.value.name == name
    assert str(pool) in caught.value.message
    assert "`az " in caught.value.hint


class FakeArm:
    """Azure Resource Manager, or what stands in its place."""

    def __init__(self, *answers: ArmReply | FlexError) -> None:
        self.answers = list(answers)
        self.bodies: list[tuple[Any, ...]] = []

    def send(self, method: str, where: str, api_version: str = "", body: Any = None, headers: Any = None) -> ArmReply:
        self.bodies.append((method, where, api_version, body, headers))
        answer = self.answers.pop(0)
        if isinstance(answer, FlexError):
            raise answer
        return answer


def refused(status: int, code: str = "", message: str = "no", **headers: str) -> FlexError:
    text = json.dumps({"error": {"code": code, "message": message}}) if code else "<html>sign in</html>"
    return refused_error(status, text, headers)


POOL = PoolId("sub-1", "group-1", "cluster-1", "edge")


@pytest.mark.parametrize(
    ("answer", "name", "text"),
    [
        (ArmReply(200, "<html>Sign in</html>"), "aks-pool-data-invalid", "not a JSON object"),
        (ArmReply(200, {}), "aks-pool-data-invalid", "clusterFQDN"),
        (refused(404), "aks-pool-data-invalid", "without an error of Azure"),
        (
            refused(401, "InvalidAuthenticationTokenTenant", "The access token is from the wrong issuer"),
            "aks-pool-wrong-tenant",
            "sub-1",
        ),
        (refused(429, "TooManyRequests", "slow down", **{"retry-after": "40"}), "arm-request-rejected", "slow down"),
        (refused(503, "ServiceUnavailable", "later"), "arm-request-rejected", "later"),
    ],
)
def test_strange_answers_are_clear_errors(answer: ArmReply | FlexError, name: str, text: str) -> None:
    arm: Any = FakeArm(answer)
    with pytest.raises(FlexError) as caught:
        AksPoolClient(arm, POOL).bootstrap_data()
    assert caught.value.name == name
    assert text in caught.value.message
    assert caught.value.hint


def test_portal_page_does_not_mean_that_the_machine_is_gone() -> None:
    arm: Any = FakeArm(refused(404))
    with pytest.raises(FlexError) as caught:
        AksPoolClient(arm, POOL).find_machine("m1")
    assert caught.value.name == "aks-pool-data-invalid"


def test_requests_fit_the_models_of_the_sdk() -> None:
    known = machine_document.parse_machine(
        {
            "name": "m1",
            "properties": {"eTag": "e", "kubernetes": {"kubeletConfig": {"podMaxPids": 100}}, "tags": {"a": "b"}},
        }
    )
    bodies = [machine_document.machine_body(SETTINGS), machine_document.machine_body(SETTINGS, known, "host-1")]
    for body in bodies:
        assert problems(body, models.Machine) == []
