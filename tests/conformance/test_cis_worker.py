"""The worker controls of the CIS benchmark on a node with kube-proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cis_worker import Outcome, numbers, run_controls

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


def test_node_with_kube_proxy_passes_the_worker_controls_of_cis(lab: Lab, nodes: list[EdgeMachine]) -> None:
    for machine in nodes:
        found = run_controls(lab, machine)

        assert numbers(found, Outcome.FAIL) == []
        assert numbers(found, Outcome.NOT_APPLICABLE) == ["4.1.3", "4.1.4"]  # it uses the service account of its pod
