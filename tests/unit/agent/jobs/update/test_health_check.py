"""Tests of the health check after a change, besides a Ready node."""

from __future__ import annotations

from typing import Any

import pytest

from aks_flex_node.agent.jobs.update import health_check
from aks_flex_node.agent.jobs.update.health_check import matches_version, running_pods
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import Action, Run
from aks_flex_node.host.host import CommandResult
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import config_of
from tests.unit.agent.jobs.update.fakes import pod

IMAGE = "mcr.microsoft.com/oss/kubernetes/pause:3.9"
CTR = ("/usr/local/bin/ctr", "--namespace", "k8s.io")


@pytest.mark.parametrize(
    ("shown", "wanted", "same"),
    [
        ("v1.34.4", "v1.34.4", True),
        ("v1.34.4-aks.1", "v1.34.4", True),
        ("v1.34.40", "v1.34.4", False),
        ("containerd://2.4.2", "containerd://2.4.2", True),
        ("containerd://v2.4.2", "containerd://2.4.2", True),
        ("containerd://1.7.29~ds1", "containerd://1.7.29", True),
        ("containerd://2.4.1", "containerd://2.4.2", False),
        ("", "v1.34.4", False),
        ("anything", "", True),
    ],
)
def test_reported_version_matches_despite_vendor_formatting(shown: str, wanted: str, same: bool) -> None:
    assert matches_version(shown, wanted) is same


def changed(**changes: Any) -> dict[str, Any]:
    made = pod()
    for part, value in changes.items():
        made[part] = {**made[part], **value}
    return made


@pytest.mark.parametrize(
    ("one", "counts"),
    [
        (changed(), True),
        (changed(status={"phase": "Pending"}), False),
        (changed(status={"conditions": [{"type": "Ready", "status": "False"}]}), False),
        (changed(spec={"restartPolicy": "Never"}), False),
        (changed(metadata={"deletionTimestamp": "now"}), False),
    ],
    ids=str,
)
def test_only_ready_restartable_pods_are_expected_after_an_update(one: dict[str, Any], counts: bool) -> None:
    assert running_pods([one]) == ({"uid-web": "default/web"} if counts else {})


class Runtime(RecordedHost):
    """A containerd with or without an image, which can or cannot start containers."""

    def __init__(self, *, image: bool = True, left: bool = False, works: bool = True) -> None:
        found = health_check.CONTAINER_NAME if left else ""
        super().__init__(
            {},
            {
                (*CTR, "images", "list", "--quiet"): CommandResult(0, f"{IMAGE if image else 'other'}\n"),
                (*CTR, "tasks", "list", "--quiet"): CommandResult(0, found),
                (*CTR, "containers", "list", "--quiet"): CommandResult(0, found),
            },
        )
        self.works = works
        self.ran: list[str] = []

    def apply(self, action: Action) -> None:
        assert isinstance(action, Run)
        assert action.argv[:3] == CTR
        self.ran.append(" ".join(action.argv[3:5]))
        if action.argv[3] == "run" and not self.works:
            raise MachineError("action-failed", "runc: exec format error")


def tried(host: Runtime) -> list[str]:
    said: list[str] = []
    health_check.run_container_smoke_test(host, config_of(), said.append)
    return said


def test_smoke_test_starts_a_container() -> None:
    host = Runtime()
    assert tried(host) == ["container smoke test passed"]
    assert host.ran == ["run --detach"]


def test_smoke_test_first_removes_leftovers_of_a_crash() -> None:
    host = Runtime(left=True)
    tried(host)
    assert host.ran[:3] == ["tasks delete", "containers delete", "run --detach"]


def test_smoke_test_is_skipped_with_a_note_when_the_image_is_missing() -> None:
    host = Runtime(image=False)
    assert tried(host) == [f"container smoke test skipped: {IMAGE} is not on this machine"]
    assert host.ran == []


def test_smoke_test_fails_when_the_runtime_starts_no_container() -> None:
    host = Runtime(works=False, left=True)
    with pytest.raises(MachineError) as caught:
        tried(host)
    assert caught.value.name == "container-start-failed"
    assert "exec format error" in caught.value.message
    assert host.ran[-2:] == ["tasks delete", "containers delete"]
