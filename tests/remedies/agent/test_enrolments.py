"""Follows the remedies of machines that cannot enrol, with a resource provider."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.config.remote import fetch_config
from aks_flex_node.agent.http.download_options import DownloadOptions
from aks_flex_node.api import config_urls
from aks_flex_node.errors import ConfigError
from tests.node_key_client import HeldKey
from tests.remedies.agent.test_config_urls import ONLY, join, types, url_of
from tests.remedies.catalogue import advice, command

if TYPE_CHECKING:
    from pathlib import Path

    from tests.remedies.agent.sandbox import Outcome, Sandbox
    from tests.service.rp.cli.cli_harness import Person

NUMBERS = itertools.count(1)
NUMBERED = ("--node-name", "rem-{number}")


@pytest.fixture
def pool(provider: Person) -> str:
    name = f"rem{next(NUMBERS)}"
    provider.does("pool", "create", "--name", name, "--monitor")
    return name


class Enrolment:
    def __init__(self, provider: Person, pool: str, *words: str, uses: int = 1) -> None:
        made = provider.does("pool", "enrolment", "create", "--pool", pool, "--max-uses", str(uses), *words, "--json")
        self.id, self.url = made.json["name"], made.json["properties"]["enrolmentUrl"]


def enrol(url: str, facts: dict[str, Any]) -> None:
    """Enrols another machine than the one of the test."""
    fetch_config(config_urls.parse(url), DownloadOptions(attempts=1), prove=HeldKey().proof, facts=facts)


def refusal(url: str, facts: dict[str, Any]) -> str:
    """Returns the name of the error with which another machine is refused."""
    with pytest.raises(ConfigError) as caught:
        enrol(url, facts)
    return caught.value.name


def refused(outcome: Outcome, name: str, machine: Sandbox) -> None:
    assert outcome.error == name, outcome
    assert machine.sh("ls -A /var/lib/aks-flex-node 2>/dev/null || true") == ""


@pytest.mark.remedy("enrolment-exhausted", "enrolment-expired")
@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("enrolment-exhausted", "used"),
        ("enrolment-expired", "expired"),
        ("enrolment-revoked", "revoked"),
        ("enrolment-revoked", "pool deleted"),
    ],
)
def test_ended_enrolment_is_followed_by_another(
    machine: Sandbox, provider: Person, pool: str, error: str, cause: str
) -> None:
    made = Enrolment(provider, pool, *(("--hours", "0.01") if cause == "expired" else ()))
    if cause == "used":
        enrol(made.url, {"hostname": f"{pool}-a"})
    elif cause == "expired":
        machine.sh("sleep 37")
    elif cause == "revoked":
        provider.does("pool", "enrolment", "revoke", "--pool", pool, "--id", made.id)
    else:
        provider.does("pool", "delete", "--name", pool, "--yes")
    refused(join(machine, made.url), error, machine)

    if cause == "pool deleted":
        provider.does("pool", "create", "--name", pool, "--monitor")
    entry = "enrolment-exhausted" if error == "enrolment-revoked" else error  # the command is the same
    create = command(entry, "aks-flex-rp pool enrolment create", POOL=pool, N="1")
    assert join(machine, url_of(types(provider, [*create, *NUMBERED]))).code == 0


@pytest.mark.remedy("machine-not-listed")
def test_machine_is_added_to_the_list(provider: Person, pool: str, tmp_path: Path) -> None:
    listed = tmp_path / "machines.csv"
    listed.write_text("serialNumber\nABC1\n")
    made = Enrolment(provider, pool, "--allow-file", str(listed))
    facts = {"hostname": f"{pool}-a", "serialNumber": "ABC2"}
    assert refusal(made.url, facts) == "machine-not-listed"

    assert "ABC2" in provider.does("audit", "--what", "enrolment.refused", "--json").out
    listed.write_text("serialNumber\nABC1\nABC2\n")
    create = command("machine-not-listed", "aks-flex-rp pool enrolment create", POOL=pool, N="1", FILE=str(listed))
    enrol(url_of(types(provider, create)), facts)


@pytest.mark.remedy("machine-cloned")
def test_reimaged_machine_gets_its_released_node(provider: Person, pool: str) -> None:
    made = Enrolment(provider, pool, uses=2)
    facts = {"hostname": f"{pool}-a", "systemUuid": "8f1c0b2e-1111-4222-8333-0000000000" + f"{next(NUMBERS):02}"}
    enrol(made.url, facts)
    assert refusal(made.url, facts) == "machine-cloned"

    types(provider, command("machine-cloned", "aks-flex-rp node release", NODE=f"{pool}-a"))
    enrol(made.url, facts)


@pytest.mark.remedy("machine-cloned")
def test_copied_disk_is_reset_before_it_enrols(machine: Sandbox, provider: Person, pool: str) -> None:
    made = Enrolment(provider, pool, *NUMBERED, uses=2)
    assert join(machine, made.url).code == 0
    machine.write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    machine.sh("rm -f /var/lib/aks-flex-node/config*")
    assert join(machine, made.url).error == "machine-cloned"

    assert machine.types(command("machine-cloned", "aks-flex-node unbootstrap")).code == 0
    assert join(machine, made.url).code == 0


@pytest.mark.remedy("enrolment-name-taken")
def test_other_node_with_the_host_name_is_deleted(machine: Sandbox, provider: Person, pool: str) -> None:
    made = Enrolment(provider, pool)
    host = f"{pool}-host"
    machine.write("/etc/hostname", f"{host}\n")
    provider.does("node", "create", "--name", host)
    refused(join(machine, made.url), "enrolment-name-taken", machine)

    advice("enrolment-name-taken", "Change the host name with `hostnamectl set-hostname NEW-NAME`")
    types(provider, command("enrolment-name-taken", "aks-flex-rp node delete", NODE=host))
    assert join(machine, made.url).code == 0


def test_machine_without_a_serial_number_gets_a_number(provider: Person, pool: str) -> None:
    made = Enrolment(provider, pool, "--node-name", "edge-{serial}")
    facts = {"hostname": f"{pool}-a", "serialNumber": "To be filled by O.E.M."}
    assert refusal(made.url, facts) == "enrolment-name-invalid"

    create = f"aks-flex-rp pool enrolment create --pool {pool} --max-uses 1 --node-name edge-{{number:04}}".split()
    enrol(url_of(types(provider, create)), facts)


@pytest.mark.remedy("enrolment-not-approved")
def test_machine_is_approved_by_its_fingerprint(machine: Sandbox, provider: Person, pool: str) -> None:
    made = Enrolment(provider, pool, "--approval", "manual", *NUMBERED)
    short = ("--set", "agent.approvalSeconds=1")
    assert join(machine, made.url, *short).error == "enrolment-not-approved"
    shown = json.loads(machine.flex("node-key", "show", "--json").out)["fingerprint"]
    names = {"POOL": pool, "ENROLMENT": made.id, "FINGERPRINT": shown}

    provider.does("pool", "enrolment", "reject", "--pool", pool, "--id", made.id, "--fingerprint", shown)
    assert join(machine, made.url, *short).error == "machine-rejected"
    types(provider, command("enrolment-not-approved", "aks-flex-rp pool enrolment approve", **names))
    assert join(machine, made.url).code == 0


def test_machine_is_enrolled_before_it_is_shown(machine: Sandbox, provider: Person, pool: str) -> None:
    made = Enrolment(provider, pool, *NUMBERED)
    assert join(machine, made.url, "--dry-run").error == "enrolment-url-not-allowed"

    assert join(machine, made.url).code == 0
    assert machine.flex("bootstrap", "--dry-run", *ONLY).code == 0
