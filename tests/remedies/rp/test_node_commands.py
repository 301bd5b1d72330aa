"""The remedies of errors in the options of `aks-flex-rp node` and `audit`, with a real service."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.remedies.catalogue import advice, command
from tests.remedies.rp.harness import fails, our_command, private
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


@pytest.mark.parametrize(
    ("error", "wrong", "words", "values"),
    [
        pytest.param(
            "auth-method-invalid",
            ("--auth-method", "password"),
            ("none",),
            {},
            marks=pytest.mark.remedy("auth-method-invalid"),
        ),
        pytest.param(
            "label-invalid",
            ("--label", "site:north"),
            ("KEY=VALUE",),
            {"KEY": "site", "VALUE": "north"},
            marks=pytest.mark.remedy("label-invalid"),
        ),
        pytest.param(
            "taint-invalid",
            ("--taint", "edge"),
            ("KEY=VALUE:EFFECT",),
            {"KEY": "edge", "VALUE": "yes", "EFFECT": "NoSchedule"},
            marks=pytest.mark.remedy("taint-invalid"),
        ),
        pytest.param(
            "taint-invalid",
            ("--taint", "edge=yes"),
            ("KEY:EFFECT",),
            {"KEY": "edge", "EFFECT": "NoExecute"},
            marks=pytest.mark.remedy("taint-invalid"),
        ),
    ],
)
def test_value_of_option_has_the_form_of_the_remedy(
    user: Person, name: str, error: str, wrong: tuple[str, str], words: tuple[str], values: dict[str, str]
) -> None:
    fails(user, error, *create(name, *wrong))

    [right] = command(error, *words, **values)
    user.does(*create(name, wrong[0], right))


@pytest.mark.remedy("weekday-invalid")
@pytest.mark.parametrize("day", ["--window-day daily", "Monday"])
def test_maintenance_window_takes_english_weekdays_or_daily(user: Person, name: str, day: str) -> None:
    fails(user, "weekday-invalid", *create(name, *WINDOW, "--window-day", "Montag"))

    right = command("weekday-invalid", day)
    user.does(*create(name, *WINDOW, *(right if len(right) == 2 else ("--window-day", *right))))


@pytest.mark.remedy("auth-options-mismatch")
def test_option_of_identity_is_accepted_with_its_method(user: Person, name: str) -> None:
    user.does(*create(name))
    update = ("node", "update", *ON_PLANT, "--name", name)
    fails(user, "auth-options-mismatch", *update, *IDENTITY)
    user.does(*update, *IDENTITY, *command("auth-options-mismatch", "--auth-method servicePrincipal"))

    principal = ("--principal-id", CLIENT)
    fails(user, "auth-options-mismatch", *update, *principal)
    managed = command("auth-options-mismatch", "--auth-method managedIdentity")
    for method in (managed, [managed[0], *command("auth-options-mismatch", "arc")]):
        done = user.types(*update, *principal, *method)
        assert "auth-options-mismatch" not in done.err


@pytest.mark.remedy("kubelet-setting-invalid")
def test_kubelet_setting_is_corrected_or_written_into_a_file(user: Person, name: str, tmp_path: Path) -> None:
    for wrong in ("nodeIP=1.2.3.4", "kubeReserved=100m", "podPidsLimit=many", "podPidsLimit"):
        fails(user, "kubelet-setting-invalid", *create(name, "--kubelet-setting", wrong))

    advice("kubelet-setting-invalid", "Correct the setting")
    user.does(*create(name, "--kubelet-setting", "kubeReserved.cpu=100m"))
    file = tmp_path / "kubelet.yaml"
    file.write_text("kubeReserved: {cpu: 200m}\npodPidsLimit: 100\n")
    user.does(
        *("node", "update", *ON_PLANT, "--name", name),
        *command("kubelet-setting-invalid", "--kubelet-config", FILE=str(file)),
    )


@pytest.mark.remedy("timestamp-invalid")
def test_audit_takes_an_age_or_a_point_in_time(user: Person) -> None:
    fails(user, "timestamp-invalid", "audit", "--since", "yesterday")

    for form in ("30m", "12h", "7d", "2026-05-01T12:00Z"):
        user.does("audit", "--since", *command("timestamp-invalid", form))


@pytest.mark.remedy("node-exists")
def test_existing_node_is_updated_or_another_name_is_chosen(user: Person, name: str) -> None:
    user.does(*create(name))
    fails(user, "node-exists", *create(name, "--max-pods", "50"))

    user.does(*our_command("node-exists", "node update"), *ON_PLANT, "--name", name, "--max-pods", "50")
    advice("node-exists", "or choose another name")
    user.does(*create(f"{name}-b", "--max-pods", "50"))


@pytest.mark.remedy("node-file-invalid")
def test_file_of_node_or_its_path_is_corrected(user: Person, name: str, tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    for wrong in ("{", "[]", '{"properties": {"nodeConfig": []}}'):
        file.write_text(wrong)
        fails(user, "node-file-invalid", *create(name, "--file", str(file)))
    file.write_text(json.dumps({"properties": {"nodeConfig": {"maxPods": 50}}}))
    fails(user, "node-file-invalid", *create(name, "--file", f"{file}.old"))

    advice("node-file-invalid", "Correct the file, or the path of `--file`.")
    user.does(*create(name, "--file", str(file)))


@pytest.mark.remedy("secret-empty")
def test_client_secret_is_written_into_its_file(user: Person, name: str, tmp_path: Path) -> None:
    file = private(tmp_path / "secret", "\n")
    how = ("--auth-method", "servicePrincipal", "--client-id", client_of(name), "--client-secret-file", str(file))
    fails(user, "secret-empty", *create(name, *how))

    advice("secret-empty", "Write the client secret of the service principal into the file, with mode 0600.")
    private(file, "canary-8d3f-secret\n")
    user.does(*create(name, *how))


@pytest.mark.remedy("stdin-already-used")
def test_token_or_secret_is_read_from_a_file(user: Person, name: str, tmp_path: Path) -> None:
    how = ("--auth-method", "servicePrincipal", "--client-id", client_of(name))
    key = (user.state / "admin.key").read_text()
    both = ("--token-file", "-", "--client-secret-file", "-")
    fails(user, "stdin-already-used", *create(name, *how, *both), stdin=key)

    advice("stdin-already-used", "Write one of the two into a file with mode 0600, and pass its path.")
    file = private(tmp_path / "secret", "canary-8d3f-secret")
    one = ("--token-file", "-", "--client-secret-file", str(file))
    user.does(*create(name, *how, *one), stdin=key)


@pytest.mark.remedy("request-rejected")
def test_request_succeeds_when_listed_problems_are_corrected(user: Person, name: str, tmp_path: Path) -> None:
    said = fails(user, "request-rejected", *create(name, "--max-pods", "0", "--label", "bad key=x")).err
    assert "nodeConfig.maxPods" in said
    assert "nodeConfig.labels" in said
    advice("request-rejected", "Correct the listed problems.")
    user.does(*create(name, "--max-pods", "50", "--label", "key=x"))

    token = private(tmp_path / "token", "aksflex_admin_" + "x" * 40)
    show = ("node", "show", *ON_PLANT, "--name", name, "--token-file", str(token))
    assert "InvalidAuthenticationToken" in fails(user, "request-rejected", *show).err
    advice("request-rejected", "use a new token or the present admin key")
    private(token, (user.state / "admin.key").read_text())
    user.does(*show)
