"""The remedies of errors of Azure Arc are followed, and the same registration then succeeds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.arc import machine_agent
from aks_flex_node.agent.bootstrap import prerequisites
from aks_flex_node.azure.arm import refused_error
from aks_flex_node.azure.roles import CLUSTER_USER, RBAC_CLUSTER_ADMIN
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import Run, StartUnit
from aks_flex_node.host.host import CommandResult
from aks_flex_node.settings.base import replace
from tests.arc_machines import CLUSTER, MACHINE, ArcSystem, Azure, config
from tests.crash import harness
from tests.openpgp_keys import FINGERPRINT, KEY, OTHER_FINGERPRINT, OTHER_KEY
from tests.remedies.catalogue import advice, command
from tests.unit.agent.arc.conftest import Place
from tests.unit.agent.builders import config_of

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.host.actions import Action
    from aks_flex_node.settings.models import NodeConfig

FORBIDDEN = refused_error(403, '{"error": {"code": "AuthorizationFailed", "message": "No authorization."}}')
ROLES = (CLUSTER_USER, RBAC_CLUSTER_ADMIN)


class KeyServer(Azure):
    """An Azure whose package repository publishes a key chosen by the test."""

    key = KEY

    def text(self, url: str) -> str:
        super().text(url)
        return self.key


class AdministeredSystem(ArcSystem):
    """A system on which azcmagent can be broken, and its service masked."""

    show = ""  # what `azcmagent show` prints instead of its status
    masked = False

    def ask(self, *argv: str, seconds: float) -> CommandResult:
        if self.show and argv[1:] == ("show", "-j"):
            return CommandResult(1, "", self.show)
        return super().ask(*argv, seconds=seconds)

    def do(self, action: Action) -> None:
        if isinstance(action, StartUnit) and not self.masked:
            self.himds = "active"
        else:
            super().do(action)


class Machine(Place):
    """A machine on which `arc register` runs, and on which an administrator runs commands."""

    azure: KeyServer
    system: AdministeredSystem

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.azure = KeyServer(root)
        self.system = AdministeredSystem(root, self.azure)
        self.host.system = self.system

    def register(self, settings: NodeConfig) -> None:
        self.registration(settings).run(verify_again=True)
        assert machine_agent.status(self.host, config())["status"] == "Connected"

    def error(self, **changes: object) -> FlexError:
        with pytest.raises(FlexError) as caught:
            self.register(config(**changes))
        return caught.value

    def run(self, argv: list[str]) -> None:
        """Runs a command of a remedy as an administrator does."""
        match argv:
            case ["azcmagent", *words]:
                self.host.apply(Run(("/usr/bin/azcmagent", *words), "follow the remedy"))
            case ["az", "resource", "delete", "--ids", path]:
                self.azure.delete(path, "")
            case ["systemctl", "unmask", "himdsd.service"]:
                self.system.masked = False
            case _:
                raise AssertionError(f"unknown command {argv}")

    def connect(self, machine: str, status: str = "Connected") -> None:
        """Registers the machine as another program would."""
        self.system._install()
        self.system.registered.write_text(json.dumps({"status": status, "resourceId": machine}))
        made = {"identity": {"principalId": "principal-1"}, "location": "westeurope", "tags": {}}
        self.azure.keep({"machines": {machine: made}, "roles": {}})


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_machine_registers_after_the_missing_settings_are_set(machine: Machine) -> None:
    complete = config(targetCluster=None, arc__autoRoleAssignment=False)
    incomplete = replace(complete, azure=replace(complete.azure, location=None))
    with pytest.raises(FlexError) as caught:
        machine.register(incomplete)
    assert caught.value.name == "arc-settings-missing"
    assert "azure.location" in caught.value.message

    machine.register(replace(incomplete, azure=replace(incomplete.azure, location="westeurope")))


def test_join_needs_no_arc_settings_when_arc_is_disabled(machine: Machine) -> None:
    engine = harness.engine(machine.host, config_of({"azure.arc.enabled": False}))

    assert prerequisites.prerequisite_stages(engine, print) == []


@pytest.mark.remedy("azcmagent-not-responding")
def test_machine_registers_after_azcmagent_responds(machine: Machine) -> None:
    machine.system._install()
    machine.system.show = "cannot open /etc/opt/azcmagent: permission denied"
    error = machine.error()
    assert error.name == "azcmagent-not-responding"
    assert "permission denied" in error.message

    advice("azcmagent-not-responding", "Correct what azcmagent reports, then run the same command again.")
    machine.system.show = ""
    machine.register(config())


@pytest.mark.parametrize(
    ("installed", "reported", "name", "words"),
    [
        pytest.param(
            True,
            "AZCM0042: the proxy cannot be reached",
            "azcmagent-failed",
            "Correct what azcmagent reports, for example its network access, then run the same command again.",
            marks=pytest.mark.remedy("azcmagent-failed"),
        ),
        pytest.param(
            False,
            "E: Failed to fetch https://packages.microsoft.com",
            "arc-package-failed",
            "",
        ),
        pytest.param(
            False,
            "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt)",
            "package-manager-locked",
            "Wait until that process ends, then run the same command again.",
            marks=pytest.mark.remedy("package-manager-locked"),
        ),
    ],
)
def test_same_command_succeeds_after_the_cause_is_gone(
    machine: Machine, installed: bool, reported: str, name: str, words: str
) -> None:
    if installed:
        machine.system._install()
    machine.system.refused = reported
    assert machine.error().name == name

    if words:
        advice(name, words)
    machine.system.refused = ""
    machine.register(config())


def test_trusted_key_is_accepted_after_its_fingerprint_is_added(machine: Machine) -> None:
    machine.azure.key = OTHER_KEY
    error = machine.error()
    assert error.name == "package-key-mismatch"
    shown = error.message.rstrip(".").rpartition(" ")[2]
    assert shown == OTHER_FINGERPRINT

    machine.register(config(arc__package__keyFingerprints=[FINGERPRINT, shown]))


@pytest.mark.remedy("arc-connected-elsewhere")
@pytest.mark.parametrize("way", ["settings", "disconnect"])
def test_machine_registers_as_the_existing_or_the_configured_machine(machine: Machine, way: str) -> None:
    machine.connect(MACHINE.replace("group-1", "theirs").replace("edge-1", "pump"))
    assert machine.error().name == "arc-connected-elsewhere"

    if way == "settings":
        advice("arc-connected-elsewhere", "Set `azure.subscriptionId`, `azure.arc.resourceGroup` and")
        machine.register(config(arc__resourceGroup="theirs", arc__machineName="pump"))
    else:
        words = command("arc-connected-elsewhere", "azcmagent disconnect")
        assert words == ["azcmagent", "disconnect"]
        machine.run([*words, "--force-local-only"])  # the simulated azcmagent cannot sign in a user
        machine.register(config())


@pytest.mark.remedy("arc-expired")
def test_expired_registration_of_others_is_replaced_by_hand(machine: Machine) -> None:
    machine.connect(MACHINE, "Expired")
    error = machine.error()
    assert error.name == "arc-expired"

    machine.run(command("arc-expired", "azcmagent disconnect"))
    machine.run(command("arc-expired", "az resource delete", ID=MACHINE))
    machine.register(config())


@pytest.mark.remedy("arc-machine-not-found")
def test_machine_deleted_in_azure_is_registered_again(machine: Machine) -> None:
    machine.register(config())
    machine.azure.delete(MACHINE, "")
    assert machine.error().name == "arc-machine-not-found"

    machine.run(command("arc-machine-not-found", "azcmagent disconnect"))
    assert command("arc-machine-not-found", "aks-flex-node arc register")[1:] == ["arc", "register"]
    machine.register(config())

    assert MACHINE in machine.azure.state["machines"]


@pytest.mark.remedy("role-assignment-forbidden")
@pytest.mark.parametrize("way", ["operator", "administrator", "other roles"])
def test_roles_are_assigned_by_a_user_who_can_assign_them(machine: Machine, way: str) -> None:
    machine.azure.faults[f"PUT {CLUSTER}"] = FORBIDDEN
    error = machine.error()
    assert error.name == "role-assignment-forbidden"
    changes: dict[str, object] = {}

    if way == "operator":
        advice("role-assignment-forbidden", "Assign the role User Access Administrator or Owner on the cluster")
        machine.azure.faults.clear()
    elif way == "administrator":
        [setting, value] = command("role-assignment-forbidden", "azure.arc.autoRoleAssignment")
        assert (setting, value) == ("azure.arc.autoRoleAssignment:", "false")
        changes = {"arc__autoRoleAssignment": False}
        machine.register(config(**changes))
        printed = [note for note in machine.notes if "az role assignment create" in note]
        assert len(printed) == len(ROLES)
        roles = {f"by-administrator-{role.id}": {"roleDefinitionId": f"x/{role.id}"} for role in ROLES}
        machine.azure.keep({**machine.azure.state, "roles": roles})
        machine.notes.clear()
    else:
        advice("role-assignment-forbidden", "To choose other roles, set `azure.arc.roles`.")
        changes = {"arc__roles": []}
    machine.register(config(**changes))
    assert not any("az role assignment create" in note for note in machine.notes)


@pytest.mark.remedy("role-assignments-not-effective")
def test_late_roles_are_waited_for_by_the_same_command(machine: Machine) -> None:
    machine.azure.effective_after = 100.0
    assert machine.error(arc__waitSeconds=60).name == "role-assignments-not-effective"

    advice("role-assignments-not-effective", "Run the same command again to continue waiting.")
    machine.register(config(arc__waitSeconds=60))

    assert machine.azure.clock.time >= 100.0


@pytest.mark.remedy("role-assignments-not-effective")
def test_late_roles_are_effective_within_a_longer_wait(machine: Machine) -> None:
    machine.azure.effective_after = 900.0
    assert machine.error(arc__waitSeconds=60).name == "role-assignments-not-effective"

    advice("role-assignments-not-effective", "Increase `azure.arc.waitSeconds` if needed.")
    machine.register(config(arc__waitSeconds=1800))
