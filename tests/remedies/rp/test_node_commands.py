"""Commands of `aks-flex-rp node` and `audit` that are refused, with a real service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.remedies.rp.harness import fails, private
from tests.service.rp.api.bodies import client_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.rp.cli.cli_harness import Person


def test_wrong_option_of_a_command_is_refused_by_name(user: Person, name: str, tmp_path: Path) -> None:
    empty = str(private(tmp_path / "secret", "\n"))
    create = ("node", "create", "--cluster", "plant", "--name", name)
    principal = (*create, "--auth-method", "servicePrincipal", "--client-id", client_of(name))
    fails(user, "weekday-invalid", *create, "--window-start", "22:00", "--window-day", "Montag")
    fails(user, "timestamp-invalid", "audit", "--since", "yesterday")
    fails(user, "secret-empty", *principal, "--client-secret-file", empty)
    both = ("--token-file", "-", "--client-secret-file", "-")
    fails(user, "stdin-already-used", *principal, *both, stdin=(user.state / "admin.key").read_text())
    user.does(*create)
    fails(user, "node-exists", *create[:-1], name.upper(), "--max-pods", "50")


def test_audit_takes_an_age_or_a_point_in_time(user: Person) -> None:
    for form in ("30m", "12h", "7d", "2026-05-01T12:00Z"):
        user.does("audit", "--since", form)
