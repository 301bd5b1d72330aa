"""Tests of the worker controls of CIS: which there are, and what they find, without a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.cis_worker import BENCHMARK, CONTROLS, Outcome, WorkerNode

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


class FakeNode(WorkerNode):
    def __init__(self, settings: dict[str, Any], user: dict[str, Any]) -> None:
        super().__init__(cast("Lab", None), cast("EdgeMachine", None))
        self.__dict__["settings"] = settings
        self._user = user

    def users(self) -> list[dict[str, Any]]:
        return [self._user]


def test_every_worker_control_of_the_benchmark_is_checked() -> None:
    assert [control.number for control in CONTROLS] == list(BENCHMARK)


@pytest.mark.parametrize(
    ("user", "rotated", "expected"),
    [
        ({"client-certificate": "/var/lib/kubelet/pki/current.pem"}, True, Outcome.PASS),
        ({"client-certificate": "/var/lib/kubelet/pki/current.pem"}, False, Outcome.FAIL),
        ({"exec": {"command": "aks-flex-node"}}, False, Outcome.NOT_APPLICABLE),
        ({"exec": {"command": "aks-flex-node"}, "client-certificate-data": "UEVN"}, False, Outcome.FAIL),
    ],
)
def test_rotation_is_not_applicable_only_without_client_certificate(
    user: dict[str, Any], rotated: bool, expected: Outcome
) -> None:
    [control] = [each for each in CONTROLS if each.number == "4.2.10"]

    assert control.check(FakeNode({"rotateCertificates": rotated}, user)).outcome is expected
