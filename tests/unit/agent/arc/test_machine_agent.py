"""Tests of the local Arc status and the names of its services."""

from __future__ import annotations

import json

import pytest

from aks_flex_node.agent.arc import machine_agent
from aks_flex_node.host.host import CommandResult, UnitState
from tests.arc_machines import MACHINE, config
from tests.hosts.recorded import RecordedHost

SHOW = ("/usr/bin/azcmagent", "show", "-j")
NAMES = {"subscriptionId": "sub-1", "resourceGroup": "group-1", "resourceName": "edge-1"}
PROGRAM = {"/usr/bin/azcmagent": ""}


def answering(text: str, code: int = 0, **files: str) -> RecordedHost:
    return RecordedHost({**PROGRAM, **files}, {SHOW: CommandResult(code, text)})


@pytest.mark.parametrize("status", ["Connected", "Disconnected", "Expired"])
def test_registered_machine_has_the_status_azcmagent_reports(status: str) -> None:
    told = {**NAMES, "status": status, "location": "westeurope", "agentVersion": "1.50", "lastHeartbeat": "now"}
    found = machine_agent.status(answering(json.dumps(told)), config())
    assert (found["status"], found["resourceId"], found["machine"]) == (status, MACHINE, "edge-1")


def test_arc_status_is_not_registered_when_azcmagent_has_no_machine() -> None:
    empty = dict.fromkeys(NAMES, "")
    found = machine_agent.status(answering(json.dumps({**empty, "status": "Disconnected"})), config())
    assert found["status"] == "NotRegistered"


def test_arc_status_is_registering_in_phase_arc_registering() -> None:
    state = json.dumps({"phase": "ArcRegistering"})
    host = RecordedHost({"/var/lib/aks-flex-node/state.json": state})
    assert machine_agent.status(host, config()) == {"status": "Registering"}


@pytest.mark.parametrize(("text", "code"), [("not json", 0), ("[]", 0), ("{}", 1)])
def test_arc_status_is_unknown_when_azcmagent_output_is_unusable(text: str, code: int) -> None:
    assert machine_agent.status(answering(text, code), config())["status"] == "unknown"


def test_arc_status_is_disabled_when_arc_is_not_enabled_in_the_config() -> None:
    assert machine_agent.status(answering("{}"), config(arc__enabled=False)) == {"status": "disabled"}


def test_arc_services_are_found_by_the_program_in_exec_start() -> None:
    units = "/usr/lib/systemd/system"
    host = RecordedHost(
        {
            f"{units}/renamed.service": "[Unit]\nDescription=x\n[Service]\nExecStart=-/opt/azcmagent/bin/himds -x\n",
            f"{units}/gcad.service": "[Service]\nExecStart=/opt/GC_Service/GC/gc_linux_service\n",
            f"{units}/other.service": "[Service]\nExecStart=/usr/bin/himds\n",
            f"{units}/odd.service": "no section\n",
            f"{units}/renamed.timer": "[Timer]\n",
        },
        units={"renamed.service": UnitState("renamed.service", active="active")},
    )
    assert sorted(machine_agent.agent_services(host)) == ["gcad.service", "renamed.service"]
    assert machine_agent.metadata_service(host) == "renamed.service"
