"""Refusals of machines and keys at the fetch of a configuration, at an enrolment, and at polls and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node import __version__
from aks_flex_node.api.arm_errors import CONFIG_URL_TAKEN, NODE_KEY_REVOKED, ON_ANOTHER_MACHINE, REPLACED
from aks_flex_node.api.enrolments import CLONED
from aks_flex_rp.arm.errors import ArmError

if TYPE_CHECKING:
    from aks_flex_node.api.machine_identity import MachineIdentity
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


def machine_not_sent(name: str, other: KnownMachine) -> ArmError:
    return ArmError(
        409,
        ON_ANOTHER_MACHINE,
        f"Node {name} lives on the machine {other.identity}, and this client has not sent which machine it is. "
        f"Update the agent there, or move node {name} to this machine with the join command of "
        f"`aks-flex-rp node join-command --name {name} --replace`.",
    )


def conflict(name: str, machine: MachineIdentity | None, other: KnownMachine) -> ArmError:
    return on_another_machine(name, other) if machine else machine_not_sent(name, other)


def key_needed(name: str, *, revoked: bool) -> ArmError:
    """Returns the error for an agent of an earlier release, which shows the message of this code."""
    why = "was cut off with `revoke-key`" if revoked else "has no Azure identity"
    return ArmError(
        409,
        ON_ANOTHER_MACHINE,
        f"Node {name} {why} and is managed by a key of its machine, which this agent does not have. "
        f"Update the agent on this machine to version {__version__} first, and run the same command again.",
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


def other_key(name: str, code: str) -> ArmError:
    return ArmError(
        409,
        code,
        f"Node {name} is alive and has another key than this client. Create another node for this machine, or give "
        f"node {name} to it with the join command of `aks-flex-rp node join-command --name {name} --replace`.",
    )


def already_used(name: str, first: KnownMachine | None, code: str = ON_ANOTHER_MACHINE) -> ArmError:
    where = f"the machine {first.identity}" if first else "another client"
    return ArmError(
        409,
        code,
        f"The config URL of node {name} was first used by {where}, and works only there. Create another node for "
        f"this machine, or a new URL with `aks-flex-rp node join-command --name {name} --replace`.",
    )


def replaced(name: str, other: KnownMachine | None) -> ArmError:
    where = f" to the machine {other.identity}" if other else ""
    return ArmError(409, REPLACED, f"Node {name} was moved{where}. This machine is no longer node {name}.")


def first_without_key(name: str) -> ArmError:
    """Returns the error for a client with a key, after one without a key used the URL and joined."""
    return ArmError(
        409,
        CONFIG_URL_TAKEN,
        f"Node {name} has joined with this config URL, and the client that used it had no key. If that was this "
        f"machine and its agent was updated since, create a new URL with `aks-flex-rp node join-command --name "
        f"{name}`, and run its line here.",
    )
