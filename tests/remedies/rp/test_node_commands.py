"""The remedies of errors in the options of `aks-flex-rp node` and `audit`, with a real service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.remedies.rp.harness import fails, private
from tests.service.rp.api.bodies import client_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.rp.cli.cli_harness import Person

CLIENT = "11111111-2222-3333-4444-555555555555"
ON_PLANT = ("--cluster", "plant")


def create(name: str, *options: str) -> tuple[str, ...]:
    return ("node", "create", *ON_PLANT, "--name", name, *options)


IDENTITY = ("--client-id", CLIENT, "--certificate-on-machine")
WINDOW = ("--window-start", "22:00")


@pytest.mark.parametrize("day", ["daily", "Monday"])
def test_maintenance_window_takes_english_weekdays_or_daily(user: Person, name: str, day: str) -> None:
    fails(user, "weekday-invalid", *create(name, *WINDOW, "--window-day", "Montag"))

    user.does(*create(name, *WINDOW, "--window-day", day))


def test_audit_takes_an_age_or_a_point_in_time(user: Person) -> None:
    fails(user, "timestamp-invalid", "audit", "--since", "yesterday")

    for form in ("30m", "12h", "7d", "2026-05-01T12:00Z"):
        user.does("audit", "--since", form)


def test_existing_node_is_updated_or_another_name_is_chosen(user: Person, name: str) -> None:
    user.does(*create(name))
    fails(user, "node-exists", *create(name, "--max-pods", "50"))

    user.does("node", "update", *ON_PLANT, "--name", name, "--max-pods", "50")
    user.does(*create(f"{name}-b", "--max-pods", "50"))


def test_client_secret_is_written_into_its_file(user: Person, name: str, tmp_path: Path) -> None:
    file = private(tmp_path / "secret", "\n")
    how = ("--auth-method", "servicePrincipal", "--client-id", client_of(name), "--client-secret-file", str(file))
    fails(user, "secret-empty", *create(name, *how))

    private(file, "canary-8d3f-secret\n")
    user.does(*create(name, *how))


def test_token_or_secret_is_read_from_a_file(user: Person, name: str, tmp_path: Path) -> None:
    how = ("--auth-method", "servicePrincipal", "--client-id", client_of(name))
    key = (user.state / "admin.key").read_text()
    both = ("--token-file", "-", "--client-secret-file", "-")
    fails(user, "stdin-already-used", *create(name, *how, *both), stdin=key)

    file = private(tmp_path / "secret", "canary-8d3f-secret")
    one = ("--token-file", "-", "--client-secret-file", str(file))
    user.does(*create(name, *how, *one), stdin=key)


def test_request_succeeds_when_listed_problems_are_corrected(user: Person, name: str, tmp_path: Path) -> None:
    said = fails(user, "request-rejected", *create(name, "--max-pods", "0", "--label", "bad key=x")).err
    assert "nodeConfig.maxPods" in said
    assert "nodeConfig.labels" in said
    user.does(*create(name, "--max-pods", "50", "--label", "key=x"))

    token = private(tmp_path / "token", "aksflex_admin_" + "x" * 40)
    show = ("node", "show", *ON_PLANT, "--name", name, "--token-file", str(token))
    assert "InvalidAuthenticationToken" in fails(user, "request-rejected", *show).err
    private(token, (user.state / "admin.key").read_text())
    user.does(*show)
