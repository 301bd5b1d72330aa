"""Follows the remedies of wrong command lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.remedies.agent.sandbox import Sandbox

CREDENTIALS = ("bootstrap", "--only", "credentials", "--skip", "all")


def test_one_of_two_conflicting_options_is_accepted(machine: Sandbox) -> None:
    machine.configure()
    assert machine.flex("plan", "--only", "runc", "--from", "runc").error == "options-conflict"

    for option in ("--only", "--from"):
        assert machine.flex("plan", option, "tools").code == 0
