"""Tests of `aks-flex-rp pool enrolment …` with a real service on this machine."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from aks_flex_node.api.node_keys import fingerprint
from tests.service.rp.api.enrolling_machine import EnrollingMachine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.cli.cli_harness import Person

POOL = ("--cluster", "plant", "--pool", "line")


def test_enrolment_from_creation_to_revocation(person: Person, service: Running) -> None:
    connection = service.admin.connection
    person.does("pool create --cluster plant --name line")
    assert person.does("pool enrolment list --cluster plant --pool line").out == "No enrolments.\n"
    made = person.does("pool enrolment create --cluster plant --pool line --max-uses 2 --approval manual")
    url = shlex.split(made.out)[1]
    assert "2 uses, valid until" in made.err
    row = person.does("pool enrolment list --cluster plant --pool line").out.splitlines()[1].split()
    assert row[1:6] == ["Active", "0/2", "0", "manual", "{hostname}"]
    one = (*POOL, "--id", row[0])
    assert person.does("pool enrolment machines", *one).out == "No machines.\n"

    machines = [EnrollingMachine(f"line-{each}", more={"os": "\x1b[31m"}) for each in "ab"]
    shown = [fingerprint(machine.key.thumbprint) for machine in machines]
    assert [machine.enrol(connection, url).status for machine in machines] == [202, 202]
    listed = person.does("pool enrolment machines", *one).out
    assert all(f"{each}  Waiting" in listed for each in shown)
    approved = person.does("pool enrolment approve", *one, "--fingerprint", shown[0])
    assert approved.out == f"{shown[0]} approved: it enrols within a minute\n"
    assert person.does("pool enrolment reject", *one, "--fingerprint", shown[1]).out == f"{shown[1]} rejected\n"
    assert [machine.enrol(connection, url).status for machine in machines] == [200, 409]
    typed = shown[1].replace("-", "").upper()
    again = person.does("pool enrolment approve", *one, "--fingerprint", typed)
    assert "its agent has ended: run the enrolment's line on it again" in again.out

    assert person.does("node release --cluster plant --name line-a").out == "line-a released\n"
    cut_off = person.does("node revoke-key --cluster plant --name line-a").err
    assert f"Revoke the enrolment as well: the URL of {row[0]} of pool line still lets the machine enrol" in cut_off
    assert person.does("pool enrolment revoke", *one).out == f"{row[0]} revoked after 1 use\n"
    assert "Revoke the enrolment" not in person.does("node revoke-key --cluster plant --name line-a").err
    text = person.does("pool enrolment show", *one).out
    assert "Revoked" in text
    assert url not in text
    wrong = person.types("pool enrolment approve --fingerprint 0000", *one)
    assert "MachineNotFound" in wrong.err


def test_line_of_an_allow_list_is_corrected(person: Person, tmp_path: Path) -> None:
    person.does("pool create --cluster plant --name line")
    listed = tmp_path / "machines.csv"
    create = f"pool enrolment create --cluster plant --pool line --max-uses 1 --allow-file {listed}"
    assert "cannot be read" in person.types(create).err
    listed.write_text("name,serialNumber\na,ABC1\nb,0000\n")
    wrong = person.types(create)
    assert "allow-list-invalid" in wrong.err
    assert "line 3: '0000' is not a serialNumber" in wrong.err

    listed.write_text("name,serialNumber\na,ABC1\nb,ABC2\n")
    assert "1 use, valid until" in person.does(create).err
