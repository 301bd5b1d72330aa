"""Tests of enrolments and their machines, and of attacks on their rows, on both databases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.store.model import Conflict, RecordRefused
from aks_flex_rp.store.pool_model import EnrolledMachine, Enrolment, MachineState
from tests.service.rp.store.builders import event, node
from tests.service.rp.store.test_pools import pool, put

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store

SYSTEM = "8f1c0b2e-1111-4222-8333-444455556666"


def enrolment(**more: Any) -> Enrolment:
    return replace(Enrolment("/c", "edge", "abc", "hash", 2, 1e10, "{hostname}", created=12.5), **more)


def machine(key: str, name: str = "", **more: Any) -> EnrolledMachine:
    state = MachineState.CLAIMED if name else MachineState.WAITING
    return replace(EnrolledMachine("/c", "edge", "abc", key, state, name, SYSTEM, {"hostname": "x"}), **more)


async def created(store: Store) -> Enrolment:
    await put(store, pool())
    return await store.create_enrolment(enrolment(), [event("enrolment.created", "/c/e")])


async def test_machine_and_enrolment_are_written_together(store: Store) -> None:
    made = await created(store)
    written = await store.put_machine(replace(made, uses=1), machine("k1", "n1"), [event("machine.enrolled", "/c/e")])
    found = await store.enrolment("/c", "abc")
    assert found
    assert (found.uses, found.version) == (1, made.version + 1)
    assert await store.enrolment_by_secret("hash") == found
    assert await store.machine("/c", "abc", "k1") == written
    assert await store.machine_of_node("/c", "n1") == written
    assert await store.machines_of_system("/c", SYSTEM) == (written,)
    assert len(await store.audit(resource="/c/e")) == 2


async def test_second_writer_of_an_enrolment_changes_nothing(store: Store) -> None:
    made = await created(store)
    await store.put_machine(replace(made, uses=1), machine("k1", "n1"))
    with pytest.raises(Conflict):
        await store.put_machine(replace(made, uses=1), machine("k2", "n2"))
    with pytest.raises(Conflict):
        await store.put_enrolment(replace(made, revoked=1.0))
    assert await store.machine("/c", "abc", "k2") is None


async def test_name_of_another_machine_cannot_be_written(store: Store) -> None:
    made = await created(store)
    await store.put_machine(replace(made, uses=1), machine("k1", "n1"))
    found = await store.enrolment("/c", "abc")
    assert found
    with pytest.raises(Conflict):
        await store.put_machine(replace(found, uses=2), machine("k2", "n1"))
    assert await store.enrolment("/c", "abc") == found


async def test_enrolment_of_a_missing_pool_is_not_created(store: Store) -> None:
    with pytest.raises(Conflict):
        await store.create_enrolment(enrolment())


async def test_machine_ends_with_its_node_and_its_pool(store: Store) -> None:
    made = await created(store)
    await store.put_machine(replace(made, uses=1), machine("k1", "n1"))
    await store.put_node(node("n1"), None)
    await store.delete_node("/c", "n1", None)
    assert await store.machine("/c", "abc", "k1") is None
    found = await store.pool("/c", "edge")
    assert found
    await store.delete_pool(found)
    assert await store.enrolment("/c", "abc") is None


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("UPDATE enrolments SET uses = 0", "enrolment"),
        ("UPDATE enrolments SET secret = 'other'", "enrolment"),
        ("UPDATE enrolled_machines SET state = 'Approved'", "machine"),
        ("UPDATE enrolled_machines SET system_uuid = ''", "machine"),
    ],
)
async def test_changed_rows_are_refused(store: Any, statement: str, table: str) -> None:
    made = await created(store)
    await store.put_machine(replace(made, uses=1), machine("k1"))
    await store._write_many(statement, [()])
    with pytest.raises(RecordRefused):
        await (store.enrolment("/c", "abc") if table == "enrolment" else store.machine("/c", "abc", "k1"))
