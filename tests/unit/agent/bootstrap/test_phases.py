"""Tests of the phases of a join, and of the options that choose them."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.bootstrap.phases import JOIN_PHASES, PREREQUISITES, choose_phases
from aks_flex_node.agent.components.catalog import SEQUENCE
from aks_flex_node.errors import CommandUsageError

NAMES = tuple(component.name for component in SEQUENCE)


def test_every_phase_has_its_own_name_and_every_component_is_a_phase() -> None:
    names = [phase.name for phase in JOIN_PHASES]
    assert len(set(names)) == len(names)
    assert set(NAMES) <= set(names)


@pytest.mark.parametrize(
    ("only", "start", "skip", "expected"),
    [
        ((), "", (), NAMES),
        (("kubelet",), "", (), ("kubelet",)),
        (("kubelet", "runc"), "", (), ("runc", "kubelet")),
        ((), "kubelet", (), ("kubelet", "npd", "tools")),
        ((), "kubelet", ("npd",), ("kubelet", "tools")),
        ((), "vpn", (), NAMES),
        ((), "system", (), NAMES[1:]),
        ((), "", ("npd", "tools"), NAMES[:-2]),
    ],
)
def test_components_are_chosen_in_their_order(
    only: tuple[str, ...], start: str, skip: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    chosen = choose_phases(only, start, skip)
    assert tuple(component.name for component in chosen.components) == expected
    assert chosen.is_complete is (expected == NAMES)
    assert chosen.prerequisites == (frozenset() if only or start else PREREQUISITES)


@pytest.mark.parametrize("name", [phase.name for phase in JOIN_PHASES])
def test_only_an_optional_phase_can_be_skipped(name: str) -> None:
    if next(phase for phase in JOIN_PHASES if phase.name == name).optional:
        chosen = choose_phases(skip=(name,))
        assert name not in {*(each.name for each in chosen.components), *chosen.prerequisites}
        assert chosen.preflight is (name != "preflight")
        return
    with pytest.raises(CommandUsageError, match=f"'{name}' is not a phase that can be skipped") as caught:
        choose_phases(skip=(name,))
    assert caught.value.name == "phase-unknown"
    assert "preflight, arc, vpn, system" in caught.value.hint


@pytest.mark.parametrize(("only", "start"), [(("kubelt",), ""), ((), "kubelt"), (("cni", "kubelt"), "")])
def test_unknown_phase_is_refused_and_the_known_ones_are_listed(only: tuple[str, ...], start: str) -> None:
    with pytest.raises(CommandUsageError, match="'kubelt' is not a phase that installs a component") as caught:
        choose_phases(only, start)
    assert caught.value.name == "phase-unknown"
    assert all(name in caught.value.hint for name in NAMES)
