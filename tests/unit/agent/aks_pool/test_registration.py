from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.aks_pool.machine_document import OWNER_TAG, MachineSettings, PoolMachine
from aks_flex_node.agent.aks_pool.pool_client import AksPoolClient
from aks_flex_node.agent.aks_pool.pool_ids import PoolId
from aks_flex_node.agent.aks_pool.registration import (
    MACHINE_FILE,
    MachineRecord,
    MachineRegistration,
    delete_registered,
    refuse_other_record,
)
from aks_flex_node.agent.paths import MACHINE_RECORD
from aks_flex_node.api.machine_identity import hash_machine_id
from aks_flex_node.azure.arm import AzureCallError, arm_unreachable_error
from aks_flex_node.azure.operations import AzureOperation
from aks_flex_node.errors import FlexError
from tests.hosts.recorded import RecordedHost

if TYPE_CHECKING:
    from collections.abc import Callable


POOL = PoolId("sub-1", "group-1", "cluster-1", "edge")
WANTED = MachineSettings("1.34.2", 50, {"site": "a"}, ("edge=yes:NoSchedule",))
OWN = hash_machine_id("0" * 32)
THERE = PoolMachine("m1", "e1", WANTED, "Succeeded", tags={OWNER_TAG: OWN})
UNMARKED = replace(THERE, tags={})


@dataclass
class FakePool(AksPoolClient):
    host: RecordedHost
    machine: PoolMachine | None = None
    refusals: list[AzureCallError] = field(default_factory=list)
    puts: list[MachineSettings] = field(default_factory=list)
    node_name: str = ""  # that AKS expects
    records: list[bytes | None] = field(default_factory=list)  # stored at each PUT

    def find_machine(self, name: str) -> PoolMachine | None:
        assert name == "m1"
        return self.machine

    def put_machine(
        self, name: str, settings: MachineSettings, known: PoolMachine | None, owner: str
    ) -> tuple[PoolMachine, AzureOperation | None]:
        self.records.append(self.host.read(MACHINE_RECORD))
        if self.refusals:
            raise self.refusals.pop(0)
        assert known == self.machine
        self.puts.append(settings)
        state = "Creating" if self.machine is None else "Updating"
        tags = {OWNER_TAG: owner} if owner else {}
        self.machine = PoolMachine(name, f"e{len(self.puts) + 1}", settings, state, tags=tags)
        return self.machine, AzureOperation("m1", "id", "x")

    def wait(self, name: str, operation: AzureOperation, note: Callable[[str], None]) -> PoolMachine:
        assert self.machine
        note(f"waiting for {name}: {operation.what}")
        self.machine = replace(self.machine, provisioning_state="Succeeded", node_name=self.node_name)
        return self.machine


@pytest.fixture
def host() -> RecordedHost:
    return RecordedHost({"/etc/machine-id": "0" * 32})


@pytest.fixture
def registered(host: RecordedHost) -> RecordedHost:
    """A host that has registered the Machine m1 with the eTag e1."""
    MACHINE_FILE.write(host, MachineRecord(str(POOL), "m1", "e1"))
    return host


def registration(pool: FakePool, **more: object) -> MachineRegistration:
    made = MachineRegistration(lambda: pool, pool.host, POOL, "m1", WANTED, lambda _: None)
    made.sleep = lambda _: None
    for name, value in more.items():
        setattr(made, name, value)
    return made


def run(made: MachineRegistration) -> str:
    made.start()
    return made.finish()


def test_new_machine_is_recorded_before_it_is_created(host: RecordedHost) -> None:
    pool = FakePool(host)
    assert run(registration(pool)) == "e2"
    assert pool.puts == [WANTED]
    assert json.loads(pool.records[0] or b"") == {"pool": str(POOL), "name": "m1", "etag": ""}
    assert MACHINE_FILE.read(host) == MachineRecord(str(POOL), "m1", "e2")


@pytest.mark.parametrize(("node", "warned"), [("M1", False), ("other", True)])
def test_machine_of_another_node_name_is_said(host: RecordedHost, node: str, warned: bool) -> None:
    pool, said = FakePool(host, node_name="m1"), list[str]()
    run(registration(pool, node=node, note=said.append))
    assert any("AKS expects Node m1 for Machine m1" in each for each in said) == warned


def test_equal_machine_is_adopted_without_a_put(host: RecordedHost) -> None:
    pool = FakePool(host, THERE)
    assert run(registration(pool)) == "e1"
    assert pool.puts == []


def test_second_registration_sends_nothing(host: RecordedHost) -> None:
    pool = FakePool(host)
    run(registration(pool))
    assert run(registration(pool, known_etag="e2")) == "e2"
    assert len(pool.puts) == 1


@pytest.mark.parametrize(
    "changes", [{"settings": replace(WANTED, max_pods=10)}, {"provisioning_state": "Failed"}], ids=str
)
def test_machine_that_differs_or_failed_is_registered_again(
    registered: RecordedHost, changes: dict[str, Any]
) -> None:
    assert run(registration(FakePool(registered, replace(THERE, **changes)))) == "e2"


def test_version_of_a_provider_is_not_an_etag(host: RecordedHost) -> None:
    pool = FakePool(host, replace(THERE, settings=replace(WANTED, max_pods=10)))
    assert run(registration(pool, known_etag="1708123456")) == "e2"


@pytest.mark.parametrize(
    "newer", [replace(WANTED, version="1.35.0"), replace(WANTED, kubelet={"podMaxPids": 100})], ids=["set", "pending"]
)
def test_newer_settings_of_the_machine_are_left_to_the_daemon(
    registered: RecordedHost, newer: MachineSettings
) -> None:
    pool = FakePool(registered, replace(THERE, etag="e9", settings=newer))
    assert run(registration(pool, known_etag="e1")) == "e1"
    assert pool.puts == []


@pytest.mark.parametrize("recorded", [None, MachineRecord(str(POOL), "other")])
def test_running_machine_of_another_host_is_refused(host: RecordedHost, recorded: MachineRecord | None) -> None:
    if recorded:
        MACHINE_FILE.write(host, recorded)
    pool = FakePool(host, replace(UNMARKED, vm_state="Running"))
    with pytest.raises(FlexError, match="another host") as caught:
        registration(pool).start()
    assert caught.value.name == "machine-on-another-host"
    assert POOL.delete_machine_command("m1") in caught.value.hint
    assert MACHINE_FILE.read(host) == recorded


@pytest.mark.parametrize(
    ("record", "is_refused"),
    [
        (None, False),
        (MachineRecord(str(POOL), "m1"), False),
        (MachineRecord(str(POOL), "m2"), True),
        (MachineRecord(f"{POOL.cluster_id}/agentPools/other", "m1"), True),
    ],
)
def test_second_machine_for_one_host_is_refused(
    host: RecordedHost, record: MachineRecord | None, is_refused: bool
) -> None:
    if record:
        MACHINE_FILE.write(host, record)
    expected = pytest.raises(FlexError, match="is registered as Machine") if is_refused else nullcontext()
    with expected:
        refuse_other_record(host, POOL, "m1")


def test_own_running_machine_is_accepted(host: RecordedHost) -> None:
    MACHINE_FILE.write(host, MachineRecord(str(POOL).upper(), "M1", "e1"))
    assert run(registration(FakePool(host, replace(THERE, vm_state="Running")))) == "e1"
    assert run(registration(FakePool(host, replace(UNMARKED, vm_state="Running")))) == "e2", "it gets the mark"


@pytest.mark.parametrize("recorded", [None, MachineRecord(str(POOL), "m1", "e1")])
def test_machine_with_the_mark_of_another_host_is_refused(host: RecordedHost, recorded: MachineRecord | None) -> None:
    if recorded:
        MACHINE_FILE.write(host, recorded)  # for example on a copy of the disk
    pool = FakePool(host, replace(THERE, tags={OWNER_TAG: "another"}))
    with pytest.raises(FlexError, match="another host"):
        registration(pool).start()
    assert pool.puts == []


def test_host_that_lost_the_race_for_a_name_does_not_take_the_machine(host: RecordedHost) -> None:
    pool = FakePool(host, refusals=[refusal(412)])

    def other_host_registers(_: float) -> None:
        pool.machine = replace(THERE, vm_state="Running", tags={OWNER_TAG: "another"})

    with pytest.raises(FlexError, match="another host"):
        run(registration(pool, sleep=other_host_registers))


def test_unfinished_machine_is_waited_for(registered: RecordedHost) -> None:
    pool = FakePool(registered, replace(THERE, provisioning_state="Creating"))

    def finish(_: float) -> None:
        pool.machine = THERE

    assert run(registration(pool, sleep=finish)) == "e1"


def refusal(status: int, *, retryable: bool = False) -> AzureCallError:
    return AzureCallError("arm-request-rejected", "no", "", retryable=retryable, status=status)


@pytest.mark.parametrize(
    ("error", "more"),
    [
        (refusal(409), {}),
        (refusal(412), {}),
        (refusal(503, retryable=True), {}),
        (refusal(403), {"wait_for_roles": True}),
    ],
)
def test_busy_pool_is_asked_again(host: RecordedHost, error: AzureCallError, more: dict[str, object]) -> None:
    assert run(registration(FakePool(host, refusals=[error, error]), **more)) == "e2"


def test_registration_waits_as_long_as_azure_asks(host: RecordedHost) -> None:
    throttled = AzureCallError("arm-request-rejected", "no", "", retryable=True, status=429, retry_after=120.0)
    pool, pauses = FakePool(host, refusals=[throttled]), list[float]()
    assert run(registration(pool, sleep=pauses.append)) == "e2"
    assert pauses == [120.0]


def test_missing_role_fails_at_once(host: RecordedHost) -> None:
    with pytest.raises(AzureCallError):
        registration(FakePool(host, refusals=[refusal(403)])).start()


def test_busy_pool_is_given_up_after_the_time_limit(host: RecordedHost) -> None:
    now = iter(range(0, 10000, 100))
    with pytest.raises(AzureCallError):
        registration(FakePool(host, refusals=[refusal(409)] * 50), clock=lambda: float(next(now))).start()


def delete(outcome: bool | FlexError) -> Callable[[], bool]:
    def act() -> bool:
        if isinstance(outcome, FlexError):
            raise outcome
        return outcome

    return act


MANUAL = [POOL.delete_machine_command("m1")]


@pytest.mark.parametrize(
    ("node", "operator", "expected"),
    [
        (True, refusal(500), []),
        (False, refusal(500), []),
        (refusal(403), True, []),
        (refusal(403), refusal(403), MANUAL),
        (arm_unreachable_error("https://arm.example", "down"), True, MANUAL),
    ],
)
def test_machine_that_cannot_be_deleted_leaves_a_command(
    node: bool | FlexError, operator: bool | FlexError, expected: list[str]
) -> None:
    attempts = [("this node", delete(node)), ("the operator", delete(operator))]
    assert delete_registered(POOL, "m1", attempts, lambda _: None) == expected
