"""Refusals of machines and keys at the fetch of a configuration, at an enrolment, and at polls and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.api.arm_errors import CONFIG_URL_TAKEN, NODE_KEY_REVOKED, ON_ANOTHER_MACHINE, REPLACED
from aks_flex_node.api.enrolments import CLONED
from aks_flex_rp.arm.errors import ArmError

if TYPE_CHECKING:
    from aks_flex_rp.machine_ownership import KnownMachine


def refusal(code: str, message: str) -> ArmError:
    """Returns the error for a machine that may not enrol."""
    return ArmError(409, code, message)


def on_another_machine(name: str, other: KnownMachine | None) -> ArmError:
    where = f"lives on the machine {other.identity}" if other else "lives on another machine"
    return ArmError(
        409,
        ON_ANOTHER_MACHINE,
        f"Node {name} {where}. Create another node for this machine, or move node {name} to this machine with the "
        f"join command of `aks-flex-rp node join-command --name {name} --replace`.",
    )


def revoked_at_fetch(name: str) -> ArmError:
    return ArmError(409, NODE_KEY_REVOKED, f"The key of this machine was revoked for node {name}.")


def not_released(name: str) -> ArmError:
    """Returns the error for a key that may not take the node over, or not any more."""
    return ArmError(
        409,
        CLONED,
        f"Node {name} has another key than this machine, and was not released since it got that key.",
    )


def other_key(name: str) -> ArmError:
    return ArmError(
        409,
        CONFIG_URL_TAKEN,
        f"Node {name} is alive and has another key than this client. Create another node for this machine, or give "
        f"node {name} to it with the join command of `aks-flex-rp node join-command --name {name} --replace`.",
    )


def already_used(name: str, first: KnownMachine | None) -> ArmError:
    where = f"the machine {first.identity}" if first else "another client"
    return ArmError(
        409,
        CONFIG_URL_TAKEN,
        f"The config URL of node {name} was first used by {where}, and works only there. Create another node for "
        f"this machine, or a new URL with `aks-flex-rp node join-command --name {name} --replace`.",
    )


def replaced(name: str, other: KnownMachine | None) -> ArmError:
    where = f" to the machine {other.identity}" if other else ""
    return ArmError(409, REPLACED, f"Node {name} was moved{where}. This machine is no longer node {name}.")
