"""Tests of the descriptions of actions."""

from __future__ import annotations

import pytest

from aks_flex_node.host.actions import (
    Action,
    KillGroup,
    LoadModule,
    MakeLink,
    PlaceTree,
    ReloadUnits,
    RestartUnit,
    Run,
    SetSysctl,
    StartUnit,
    StopUnit,
    SwapOff,
)


@pytest.mark.parametrize(
    ("action", "subject"),
    [
        (MakeLink("/usr/bin/kubelet", "/opt/kubelet"), "/usr/bin/kubelet"),
        (PlaceTree("/opt/.new", "/opt/tree"), "/opt/tree"),
        (KillGroup("/kubepods.slice"), "/kubepods.slice"),
        (SetSysctl("vm.overcommit_memory", "1"), "vm.overcommit_memory"),
        (LoadModule("overlay"), "overlay"),
        (SwapOff("/dev/sda2"), "/dev/sda2"),
        (StopUnit("kubelet.service"), "kubelet.service"),
        (ReloadUnits(), ""),
        (Run(("ip", "link"), "look at links"), ""),
    ],
    ids=str,
)
def test_action_has_expected_subject(action: Action, subject: str) -> None:
    assert action.subject == subject


@pytest.mark.parametrize("action", [StartUnit("kubelet.service"), RestartUnit("kubelet.service")], ids=str)
def test_start_and_restart_actions_name_started_unit(action: Action) -> None:
    assert action.started_unit == "kubelet.service"
    assert StopUnit("kubelet.service").started_unit == ""


def test_action_text_equals_its_description() -> None:
    action = StartUnit("kubelet.service")
    assert str(action) == action.description == "start kubelet.service"
