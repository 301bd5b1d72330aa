"""Each write path asks whether only an owner may make the change. Which changes those are is the matrix of
`tests/unit/rp/nodes/test_write_permissions.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal, token
from tests.service.rp.api.enrolling_machine import PoolEnrolment
from tests.service.rp.api.simulated_fleet import BETTER, GOOD, SimulatedFleet
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.api.traffic_recorder import Answer

    Write = Callable[[Api], Answer]
    WritePath = Callable[[Running, str], Write]

MIRROR = {"artifacts": {"baseURL": "https://mirror.example"}}
TRUSTED = {"nodeConfig": MIRROR}
NEXT = {**BETTER, "nodeConfig": {"maxPods": 60, **MIRROR}}
PATH = "nodeConfig.artifacts.baseURL"
EXEC = {"useAzureAuth": True, "method": "exec"}


@pytest.fixture
def contributor(service: Running, tenant: Tenant) -> Api:
    return service.admin.by(tenant, callers.CONTRIBUTOR)


@pytest.fixture
def owner(service: Running, tenant: Tenant) -> Api:
    return service.admin.by(tenant, callers.OWNER)


def pool_of(name: str) -> str:
    return name.replace("edge-", "w")


def put_node(service: Running, name: str) -> Write:
    """A contributor names an own mirror, raises a version, and the program from there runs as root on the node."""
    assert service.admin.put(name, token()).status == 201
    return lambda api: api.put(name, token(**MIRROR))


def create_node(_service: Running, name: str) -> Write:
    return lambda api: api.put(name, token(**MIRROR))


def leave_pool(service: Running, name: str) -> Write:
    assert service.admin.put_pool(pool_of(name), TRUSTED).status == 201
    assert service.admin.put(name, {"properties": {"poolName": pool_of(name)}}).status == 201
    return lambda api: api.put(name)


def put_pool(_service: Running, name: str) -> Write:
    return lambda api: api.put_pool(pool_of(name), TRUSTED)


def apply(service: Running, name: str) -> Write:
    for template in (TRUSTED, {}):
        service.admin.put_pool(pool_of(name), template)
    return lambda api: api.pool("POST", pool_of(name), "apply", body={"revision": 1})


def start(service: Running, _name: str) -> Write:
    fleet = SimulatedFleet(service, size=1, template=NEXT)
    fleet.write(GOOD)
    body = {"properties": {"revision": 1, "allowDowngrade": True}}
    return lambda api: api.pool("PUT", fleet.pool, "rollouts", "r1", body=body)


def reverse(service: Running, _name: str) -> Write:
    """An owner has removed a mirror that was taken over. A reversal would make nodes install programs from it."""
    fleet = SimulatedFleet(service, size=1, template=NEXT)
    fleet.write(GOOD)
    fleet.start()
    fleet.work_until("Succeeded")
    return lambda api: api.pool("POST", fleet.pool, "rollouts", "r1", "reverse", body={})


def resume(service: Running, _name: str) -> Write:
    """An owner removes the mirror from the pool while a roll-out of the earlier revision is paused."""
    fleet = SimulatedFleet(service, size=1)
    fleet.write(NEXT)
    fleet.start()
    fleet.rollout("POST", "r1", "pause", body={})
    fleet.write(GOOD)
    return lambda api: api.pool("POST", fleet.pool, "rollouts", "r1", "resume", body={})


def approve(service: Running, _name: str) -> Write:
    fleet = SimulatedFleet(service, size=2)
    fleet.write(NEXT)
    fleet.start(gates=[{"name": "person", "approval": {}}])
    fleet.work_until("Gates")
    until(lambda: fleet.shown().get("gates"), "the gate waits", 10)
    fleet.write(GOOD)
    return lambda api: api.pool("POST", fleet.pool, "rollouts", "r1", "approve", body={})


WRITE_PATHS: list[WritePath] = [
    put_node,
    create_node,
    leave_pool,
    put_pool,
    apply,
    start,
    reverse,
    resume,
    approve,
]


@pytest.mark.parametrize("path", WRITE_PATHS)
def test_write_asks_for_an_owner(service: Running, owner: Api, contributor: Api, name: str, path: WritePath) -> None:
    write = path(service, name)
    refused = write(contributor)
    refused.assert_refused(403, "AuthorizationFailed")
    assert refused.error["target"] in (f"properties.{PATH}", f"properties.template.{PATH}")
    assert (
        f"Only owners of the cluster can set {refused.error['target']}, because it decides which programs"
        in (refused.error["message"])
    )
    denied = [each for each in service.admin.events() if each["outcome"] == "denied"]
    assert denied[0]["detail"]["property"] == PATH
    assert write(owner).status in (200, 201)


def test_contributor_can_write_what_an_owner_has_set(owner: Api, contributor: Api, name: str) -> None:
    assert owner.put(name, token(**MIRROR)).status == 201
    assert contributor.put(name, token(**MIRROR, maxPods=30)).status == 200
    assert contributor.put(name, token()).status == 403
    both = contributor.put(f"{name}-b", token(**MIRROR, registryMirrors={"mcr.microsoft.com": ["https://a.example"]}))
    for path in (PATH, "nodeConfig.registryMirrors"):
        assert f"properties.{path}" in both.error["message"]
    assert owner.put(name, token()).status == 200


def test_contributor_cannot_give_an_exec_node_another_identity(owner: Api, contributor: Api, name: str) -> None:
    """The contributor's own application would be bound to the role of exec nodes at its first report."""
    contributor.put(name, principal(kubernetesAuth=EXEC)).assert_refused(
        403, "AuthorizationFailed", "properties.kubernetesAuth.method"
    )
    owner.put(name, principal(kubernetesAuth=EXEC))
    refused = contributor.put(name, principal(callers.OTHER_NODE, kubernetesAuth=EXEC))
    refused.assert_refused(403, "AuthorizationFailed", "properties.azureAuth")
    assert "properties.azureAuth of a node that joins by exec, because" in refused.error["message"]

    assert contributor.put(name, principal(secret="canary-Zx82-never-to-be-seen", kubernetesAuth=EXEC)).status == 200
    assert owner.put(name, principal(callers.OTHER_NODE, kubernetesAuth=EXEC)).status == 200


def test_machine_that_enrols_gets_what_the_owner_has_set_for_the_pool(service: Running, name: str) -> None:
    """Nobody is an owner here: the machine asks, and the release of its node writes what the node has."""
    admin = service.admin
    for template, status in ((TRUSTED, 200), ({"azureAuth": {"method": "arc"}, "kubernetesAuth": EXEC}, 403)):
        pool = f"{pool_of(name)}s{status}"
        assert admin.put_pool(pool, {"continuousMonitoring": True, **template}).status == 201
        made = PoolEnrolment.of(admin, pool)
        machine = made.machine("a")
        answer = made.enrol(machine)
        assert answer.status == status, answer.text
        if status == 200:
            assert admin.act(machine.hostname, "release").status == 200
            assert made.enrol(machine.wiped()).json["config"]["artifacts"] == MIRROR["artifacts"]
        else:
            assert answer.error["code"] == "AuthorizationFailed"
            assert admin.get(machine.hostname).status == 404


def test_mirror_without_tls_is_refused(owner: Api, name: str) -> None:
    """Everyone between an http mirror and the node chooses what the node downloads."""
    refused = owner.put(name, token(artifacts={"baseURL": "http://mirror.example"}))
    refused.assert_refused(400, "InvalidRequestContent", f"properties.{PATH}")
    assert "not encrypted" in refused.text
