"""The remedies of errors of starting and using a lab are followed without the cost of a whole lab."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

import aks_flex_lab
from aks_flex_lab.demo import Demo
from aks_flex_lab.files import file_lock
from aks_flex_lab.kernel.cgroups import LabCgroups
from aks_flex_lab.lab import Lab
from aks_flex_lab.layout import LabLayout
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.machines.inventory import MachineInventory, machine_of
from aks_flex_lab.machines.machine import MachineRecord
from aks_flex_lab.network import FIRST_MACHINE, LAST_MACHINE, free_machine_number
from aks_flex_lab.processes import CommandResult, run
from aks_flex_lab.progress import NO_PROGRESS
from aks_flex_lab.supervisor import ComponentSupervisor, LabComponent
from tests.harness import COMMAND
from tests.remedies.catalogue import advice, command
from tests.remedies.lab_harness import LabPrompt, failure
from tests.unit.agent.builders import JOIN
from tests.unit.agent.config.builders import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LAB = "remedy"  # no whole lab of this name is started
AGENT = COMMAND.with_name("aks-flex-node")


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[LabLayout]:
    yield LabLayout(LAB, tmp_path / "labs", tmp_path / "cache")
    LabCgroups(LAB).kill()
    with contextlib.suppress(ChildProcessError):  # a cgroup with a zombie cannot be removed
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    LabCgroups(LAB).remove()


@pytest.fixture
def prompt(layout: LabLayout) -> LabPrompt:
    return LabPrompt(layout)


def add_record(layout: LabLayout, name: str, site: str = "a", number: int = FIRST_MACHINE) -> None:
    """Writes the record of a machine that is not booted."""
    machine = machine_of(layout, MachineRecord(name, DebianRelease.BOOKWORM, site, number, "198.18.10.10"))
    machine.directory.mkdir(parents=True)
    (machine.directory / "machine.json").write_text(json.dumps(asdict(machine.record)))
    machine.created_marker.touch()


@pytest.mark.remedy("lab-name-invalid")
@pytest.mark.parametrize("name", ["Mine", "-a", "longer-than-twelve"])
def test_command_runs_with_a_valid_name_of_a_lab(prompt: LabPrompt, name: str) -> None:
    assert prompt.error("--lab", name, "machine", "list") == "lab-name-invalid"

    advice("lab-name-invalid", "Use 1 to 12 lower-case letters, digits and dashes")
    prompt.run("--lab", "mine-1", "machine", "list")


@pytest.mark.remedy("lab-machine-name-invalid", "site-name-invalid")
@pytest.mark.parametrize(
    ("machine", "site", "name", "right"),
    [
        ("Upper", "site-1", "lab-machine-name-invalid", ("upper-1", "site-1")),
        ("etcd", "site-1", "lab-machine-name-invalid", ("edge-1", "site-1")),
        ("a" * 31, "site-1", "lab-machine-name-invalid", ("a" * 30, "site-1")),
        ("edge-1", "the-largest-site", "site-name-invalid", ("edge-1", "largest-site")),
    ],
)
def test_machine_with_valid_names_is_accepted(
    layout: LabLayout, machine: str, site: str, name: str, right: tuple[str, str]
) -> None:
    inventory = MachineInventory(layout)
    assert failure(inventory.require_new, machine, site).name == name

    longest = 30 if name == "lab-machine-name-invalid" else 12
    advice(name, f"Use 1 to {longest} lower-case letters, digits and dashes")
    inventory.require_new(*right)


@pytest.mark.remedy("arch-without-vm")
def test_architecture_is_selected_with_a_virtual_machine(prompt: LabPrompt) -> None:
    machine = ("machine", "add", "edge-1")
    assert prompt.error(*machine, "--arch", "arm64") == "arch-without-vm"

    advice("arch-without-vm", "Run the command with `--vm`, or without `--arch`.")
    for words in (("--arch", "arm64", "--vm"), ()):
        assert prompt.error(*machine, *words) == "lab-not-running"


@pytest.mark.remedy("lab-already-running")
def test_tools_are_cleaned_after_the_lab_is_down(prompt: LabPrompt) -> None:
    prompt.layout.home.mkdir(parents=True)
    assert prompt.error("tools", "clean") == "lab-already-running"

    prompt.run(*command("lab-already-running", "aks-flex-lab --lab", NAME=LAB)[1:])
    prompt.run("tools", "clean")


@pytest.mark.remedy("lab-busy")
def test_command_runs_after_the_other_command_ended(prompt: LabPrompt) -> None:
    with file_lock(prompt.layout.lock, "the lab"):
        assert prompt.error("down") == "lab-busy"

    advice("lab-busy", "Wait until the other command ends, then retry.")
    prompt.run("down")


@pytest.mark.remedy("lab-addresses-exhausted")
def test_another_site_has_a_free_address(layout: LabLayout) -> None:
    for number in range(FIRST_MACHINE, LAST_MACHINE + 1):
        add_record(layout, f"m-{number}", "full", number)

    def number_at(site: str) -> int:
        taken = {each.record.number for each in MachineInventory(layout).all() if each.record.site == site}
        return free_machine_number(taken)

    assert failure(number_at, "full").name == "lab-addresses-exhausted"

    advice("lab-addresses-exhausted", "For a machine, use another site with `--site`.")
    assert number_at("other") == FIRST_MACHINE
    advice("lab-addresses-exhausted", "remove machines with `aks-flex-lab machine rm`")
    shutil.rmtree(layout.machines / "m-77")
    assert number_at("full") == 77


class QuickDemo(Demo):
    """A demo that only counts its steps."""

    def phase(self, title: str, act: Callable[[], None]) -> None:  # noqa: ARG002
        self.times[title] = 0.0


@pytest.mark.remedy("lab-in-use")
def test_demo_runs_in_a_separate_lab(layout: LabLayout) -> None:
    add_record(layout, "mine")
    assert failure(QuickDemo(Lab(layout), NO_PROGRESS, print).run).name == "lab-in-use"

    _, option, name, demo = command("lab-in-use", "aks-flex-lab --lab")
    assert (option, demo) == ("--lab", "demo")
    separate = LabLayout(name, layout.labs_directory, layout.cache)

    assert len(QuickDemo(Lab(separate), NO_PROGRESS, print).run()) == 11


@pytest.mark.remedy("lab-component-exited")
def test_component_starts_after_the_cause_is_removed(layout: LabLayout, tmp_path: Path) -> None:
    supervisor, wanted = ComponentSupervisor(layout), tmp_path / "wanted"
    script = f"[ -e {wanted} ] || {{ echo 'error: {wanted} is missing'; exit 1; }}; sleep 600"
    component = LabComponent("etcd", ("sh", "-c", script), "-", wanted.exists)

    def up() -> None:
        supervisor.start(component)
        supervisor.wait(component)

    error = failure(up)
    assert error.name == "lab-component-exited"
    assert f"{wanted} is missing" in error.message

    advice("lab-component-exited", "Remove the cause, then run `aks-flex-lab up` again.")
    wanted.touch()
    up()


@pytest.mark.remedy("lab-component-not-ready")
def test_second_up_continues_to_wait_for_a_slow_component(layout: LabLayout) -> None:
    supervisor, ready = ComponentSupervisor(layout), [False]
    component = LabComponent("etcd", ("sleep", "600"), "-", lambda: ready[0])

    def up(seconds: float) -> None:
        supervisor.start(component)
        supervisor.wait(component, seconds)

    assert failure(up, 0.2).name == "lab-component-not-ready"
    started = supervisor.process("etcd")

    advice("lab-component-not-ready", "Run `aks-flex-lab up` again. It continues where it stopped.")
    ready[0] = True
    up(30)

    assert supervisor.process("etcd") == started


@pytest.mark.remedy("command-failed")
def test_command_of_the_message_shows_what_to_correct(tmp_path: Path) -> None:
    argv = ("cp", str(tmp_path / "source"), str(tmp_path / "target"))
    error = failure(run, *argv)
    assert error.name == "command-failed"
    assert " ".join(argv) in error.message

    advice("command-failed", "Correct the problem that the command reports, then repeat your own command.")
    (tmp_path / "source").touch()
    run(*argv)


@pytest.mark.remedy("checkout-required")
def test_checkout_has_what_an_installed_lab_lacks(tmp_path: Path) -> None:
    """The lab runs from a copy of its packages, as pip installs them, and then from the checkout."""
    source = Path(aks_flex_lab.__file__).parents[1]
    for package in ("aks_flex_lab", "aks_flex_node", "aks_flex_rp"):
        shutil.copytree(source / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    script = "from aks_flex_lab import node_agent; print(node_agent._requirements())"
    ask = f"try:\n    {script}\nexcept Exception as error:\n    print(error.name)"
    installed = run(sys.executable, "-c", ask, env={"PYTHONPATH": str(tmp_path)}, cwd=Path("/")).out.strip()
    assert installed == "checkout-required"

    advice("checkout-required", "use `.venv/bin/aks-flex-lab` of the checkout")
    assert Path(run(COMMAND.with_name("python"), "-c", ask, cwd=Path("/")).out.strip()).exists()


@dataclass
class DemoMachine:
    """A machine in which commands of the demo run on this host."""

    pages: list[str] = field(default_factory=list)

    def command_inside(self, program: str, *words: str, tty: bool = False) -> list[str]:  # noqa: ARG002
        return ["env", f"PATH={COMMAND.parent}:{os.environ['PATH']}", program, *words]

    def run(self, *argv: str) -> CommandResult:
        return CommandResult(argv, 0, self.pages.pop(0), "")


class DemoCluster:
    """A cluster in which the pod of the demo runs."""

    def run(self, *_: str, **__: object) -> CommandResult:
        return CommandResult((), 0, "", "")

    def get(self, *_: str) -> dict[str, Any]:
        return {"items": [{"metadata": {}, "status": {"phase": "Running", "podIP": "198.19.0.2"}}]}


def demo_on(machine: DemoMachine, seconds: float = 120) -> Demo:
    inventory = SimpleNamespace(find=lambda _: machine)
    lab = SimpleNamespace(inventory=inventory, cluster=DemoCluster(), exclusive=contextlib.nullcontext)
    return Demo(cast("Lab", lab), NO_PROGRESS, print, wait_seconds=seconds)


@pytest.mark.remedy("agent-failed")
def test_agent_of_the_demo_runs_after_its_remedy_is_followed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.touch(mode=0o600)
    file.write_text('{"node": ')
    demo = demo_on(DemoMachine())
    words = ("config", "validate", "--config", str(file))
    assert failure(demo.agent, *words).name == "agent-failed"
    printed = capfd.readouterr().err.rpartition("explain ")[2].split("`")[0]

    explained = run(AGENT, *command("agent-failed", "aks-flex-node explain", NAME=printed)[1:]).out
    assert explained.startswith("config-syntax")
    file.write_text(settings(JOIN))
    demo.agent(*words)


@pytest.mark.remedy("demo-timeout")
def test_step_of_the_demo_succeeds_when_the_load_is_lower() -> None:
    overloaded = demo_on(DemoMachine(), seconds=0.2)
    assert failure(overloaded.wait_for, "the node is Ready", lambda: False).name == "demo-timeout"

    advice("demo-timeout", "run the demo again when the load is lower")
    demo_on(DemoMachine()).wait_for("the node is Ready", lambda: True)


@pytest.mark.remedy("pod-not-responding")
def test_pod_of_the_demo_responds_after_the_problem_is_corrected() -> None:
    demo = demo_on(DemoMachine(["404 page not found", "It works"]))
    assert failure(demo.wait_for_pod).name == "pod-not-responding"

    for start in ("aks-flex-lab --lab try kubectl", "aks-flex-lab --lab try machine exec"):
        assert command("pod-not-responding", start)
    advice("pod-not-responding", "Correct the problem that they show.")
    demo.wait_for_pod()
