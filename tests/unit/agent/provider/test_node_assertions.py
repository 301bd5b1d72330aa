"""Tests of the assertions that the daemon sends: signed in advance, renewed, and with the provider's time."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timezone
from email.utils import format_datetime
from typing import Any

import pytest

from aks_flex_node.agent.identity.node_key import NodeKeyStore, StoredKey
from aks_flex_node.agent.paths import STATE_DIR
from aks_flex_node.agent.provider.key_rotation import CHECK_SECONDS, RETRY, KeyRotation, rotate_key
from aks_flex_node.agent.provider.node_assertions import BATCH, STEP_SECONDS, NodeAssertions, sign_assertions
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.agent.provider.provider_client import ProviderRequestError
from aks_flex_node.agent.provider.provider_tokens import SignInError
from aks_flex_node.api.arm_errors import NODE_KEY_TIME
from aks_flex_node.host.actions import MakeDirectory
from aks_flex_node.host.host import CommandResult
from aks_flex_rp.auth import node_assertions as provider_side
from aks_flex_rp.auth.auth_errors import Unauthenticated
from aks_flex_rp.node_keys import NodeKeys
from tests.unit.agent.builders import empty_host

CLUSTER = "/subscriptions/S/resourceGroups/G (1)/providers/Microsoft.ContainerService/managedClusters/c"
SUBJECT = f"{CLUSTER}/flexNodeConfig/n"
AUDIENCE = "aks-flex-rp:x"


class Scene:
    """A machine with a bound key, whose child processes run in this one."""

    def __init__(self, *, bound: bool = True, error: str = "") -> None:
        self.host, self.now, self.wall, self.children, self.error = empty_host(), 1000.0, 1_800_000_000.0, 0, error
        self.done = ""  # what the child prints, if it signs nothing
        self.host.apply(MakeDirectory(STATE_DIR, 0o700))
        self.store = NodeKeyStore(self.host)
        self.store.ensure(self.wall)
        self.store.bind(AUDIENCE if bound else "")
        self.assertions = NodeAssertions("agent", self.host, SUBJECT, lambda: self.now, lambda: self.wall, self.run)

    def run(self, argv: tuple[str, ...], *, seconds: float, text: bytes = b"") -> CommandResult:  # noqa: ARG002
        self.children += 1
        if self.error:
            return CommandResult(1, "", self.error)
        if self.done:
            return CommandResult(0, self.done)
        return CommandResult(0, json.dumps(sign_assertions(self.host, json.loads(text))))

    def rotate(self, answer: dict[str, Any] | ProviderRequestError) -> StoredKey:
        return rotate_key(Client(answer), self.store)  # type: ignore[arg-type]

    def key(self) -> StoredKey:
        key = self.store.read()
        assert key is not None
        return key

    def verify(self, token: str, at: float) -> Any:
        key = self.key()

        async def find(_: provider_side.SignedAssertion) -> provider_side.KnownNode:
            return provider_side.KnownNode(AUDIENCE, NodeKeys(key.thumbprint))

        return asyncio.run(provider_side.verify_assertion(token, find, lambda: at))[0]


def test_one_child_signs_for_an_hour() -> None:
    scene = Scene()
    seen = set()
    for _ in range(BATCH * 2 - 1):
        token = scene.assertions.value()
        caller = scene.verify(token, scene.wall)
        assert caller.node == (CLUSTER.lower(), "n")
        seen.add(token)
        scene.now += STEP_SECONDS / 2
        scene.wall += STEP_SECONDS / 2
    assert (scene.children, len(seen)) == (1, BATCH)
    scene.now += STEP_SECONDS
    scene.assertions.value()
    assert scene.children == 2


def test_key_that_is_not_bound_signs_nothing() -> None:
    scene = Scene(bound=False)
    assert (scene.assertions.value(), scene.children) == ("", 0)


def test_new_key_signs_at_once() -> None:
    scene = Scene()
    first = scene.assertions.value()
    made = scene.store.renew()
    assert scene.assertions.value() == first
    scene.store.bind(AUDIENCE, made.thumbprint)
    assert scene.assertions.value() != first


def test_failure_of_the_child_is_reported() -> None:
    with pytest.raises(SignInError, match=r"the node key could not sign: no memory\. Check"):
        Scene(error="no memory").assertions.value()


def test_wrong_clock_is_corrected_by_the_time_of_the_provider() -> None:
    scene = Scene()
    true = scene.wall + 7200
    with pytest.raises(Unauthenticated):
        scene.verify(scene.assertions.value(), true)
    date = format_datetime(datetime.fromtimestamp(true, timezone.utc), usegmt=True)

    scene.assertions.reject(NODE_KEY_TIME, {"Date": date})

    assert scene.verify(scene.assertions.value(), true)
    assert "7200 s behind" in scene.assertions.clock_note


@pytest.mark.parametrize("date", ["", "nonsense", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_impossible_time_of_a_server_is_not_used(date: str) -> None:
    scene = Scene()
    scene.assertions.reject(NODE_KEY_TIME, {"Date": date})
    assert (scene.assertions.clock_offset, scene.assertions.clock_note) == (0.0, "")


def test_time_is_not_corrected_by_other_refusals() -> None:
    scene = Scene()
    scene.assertions.reject("InvalidAuthenticationToken", {"Date": "Mon, 01 Jan 2029 00:00:00 GMT"})
    assert scene.assertions.clock_offset == 0.0


class Client:
    """A provider that takes new keys."""

    def __init__(self, answer: dict[str, Any] | ProviderRequestError) -> None:
        self.answer, self.assertions = answer, None
        self.proofs: list[str] = []
        self.endpoint = type("Endpoint", (), {"resource_id": SUBJECT})

    def post_action(self, action: str, body: dict[str, str]) -> dict[str, Any]:
        assert action == "rotateKey"
        self.proofs.append(body["proof"])
        if isinstance(self.answer, ProviderRequestError):
            raise self.answer
        return self.answer


LOST = ProviderRequestError(PollResult(ProviderState.UNREACHABLE, "No response."))


def test_rotation_whose_response_is_lost_is_completed_with_the_same_key() -> None:
    scene = Scene()
    before = scene.key()
    with pytest.raises(ProviderRequestError):
        scene.rotate(LOST)
    pending = scene.key()
    assert pending.next is not None
    assert pending.thumbprint == before.thumbprint

    done = scene.rotate({"audience": AUDIENCE})

    assert (done.thumbprint, done.next, done.audience) == (pending.next.thumbprint, None, AUDIENCE)
    assert scene.store.read() == done


def test_first_key_of_a_node_with_azure_identity_is_bound_and_not_replaced() -> None:
    scene = Scene(bound=False)
    before = scene.key()
    done = scene.rotate({"audience": AUDIENCE})
    assert (done.thumbprint, done.audience) == (before.thumbprint, AUDIENCE)


def test_failed_rotation_is_retried_with_backoff() -> None:
    """A self-update still has the lock when the new agent polls for the first time."""
    scene = Scene(bound=False, error="Another aks-flex-node command is running.")
    rotation = KeyRotation("agent", scene.host, lambda: scene.now, lambda: scene.wall, scene.run)
    rotation.run_if_due()
    rotation.run_if_due()
    assert scene.children == 1
    scene.now += RETRY.first_delay
    rotation.run_if_due()
    assert scene.children == 2
    for _ in range(2000):
        scene.now += CHECK_SECONDS
        rotation.run_if_due()
    assert scene.children == 2002
    scene.now += CHECK_SECONDS / 4
    rotation.run_if_due()
    assert scene.children == 2002


def test_rotation_starts_when_it_is_due_and_not_at_every_poll() -> None:
    scene = Scene()
    rotation = KeyRotation("agent", scene.host, lambda: scene.now, lambda: scene.wall, scene.run)
    rotation.run_if_due()
    assert scene.children == 0
    scene.now += CHECK_SECONDS
    scene.wall += 366 * 86400
    scene.done = "{}"
    rotation.run_if_due()
    rotation.run_if_due()
    assert scene.children == 1
    scene.now += CHECK_SECONDS
    rotation.run_if_due()
    assert scene.children == 2
