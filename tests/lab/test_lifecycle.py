"""Tests of the lab's life cycle: start, faults, removal without leftovers."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.errors import LabError
from aks_flex_lab.kernel.cgroups import LabCgroups
from aks_flex_lab.lab import Lab
from aks_flex_lab.layout import lab_layout
from aks_flex_lab.mirror.control import MirrorClient
from aks_flex_lab.processes import run, spawn
from tests.harness import COMMAND, LAB, Lines, command, kill_while_coming_up
from tests.lab.host_inspection import OTHER, look
from tests.remedies.lab_harness import error_name
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.host_inspection import Listing


@pytest.fixture
def before(lab: Lab) -> Iterator[Listing]:
    """Yields the state of the host before a second lab is started."""
    Lab(lab_layout(OTHER)).down()
    yield look()
    Lab(lab_layout(OTHER)).down()


def pids(lab: Lab) -> dict[str, int | None]:
    return {part.name: part.pid for part in lab.supervisor.states()}


def test_second_lab_up_changes_nothing(lab: Lab) -> None:
    first = pids(lab)

    said = command(LAB, "up")

    assert pids(lab) == first
    assert "Next commands:" in said.err


def test_lab_down_removes_everything_and_second_down_reports_nothing(before: Listing) -> None:
    command(OTHER, "up")
    command(OTHER, "machine", "add", "edge-1")

    first, second = command(OTHER, "down"), command(OTHER, "down")

    assert f"Lab {OTHER} is removed" in first.err
    assert f"Lab {OTHER} does not exist" in second.err
    assert look().since(before) == {}


MIRROR_ERRORS = ("address-in-use", "mirror-already-running", "mirror-certificate-invalid")


def mirror_error() -> str:
    """Returns the error of the mirror that prevents the start of the second lab."""
    said = command(OTHER, "up", check=False)
    return next((each for each in MIRROR_ERRORS if f"error: {each}: " in said.err), error_name(said.err))


def test_lab_starts_again_after_faults_of_its_mirror(before: Listing) -> None:
    command(OTHER, "up")
    lab = Lab(lab_layout(OTHER))
    found = lab.supervisor.process("mirror")
    assert found
    words = Path(f"/proc/{found.pid}/cmdline").read_text().split("\0")[:-1]
    elsewhere = [word for word in words if not word.startswith(("--plain", "--listen"))]
    second = run(*elsewhere, "--listen", "127.0.0.1:0", check=False)
    assert "error: mirror-already-running: " in second.err

    control = ["--control", str(lab.layout.components / "other.sock")]
    found.stop()
    other = spawn(lab.network.cloud.command(*words, *control), log=lab.layout.home / "other.log")
    until(lambda: MirrorClient(Path(control[1])).is_running(), "another mirror has the address", 60)
    assert mirror_error() == "address-in-use"
    other.stop()

    (lab.layout.pki / "mirror.crt").write_text("damaged")
    assert mirror_error() == "mirror-certificate-invalid"

    command(OTHER, "down")
    command(OTHER, "up")
    command(OTHER, "down")
    assert look().since(before) == {}


@pytest.mark.long
def test_two_labs_are_isolated_and_removed_independently(lab: Lab, before: Listing) -> None:
    command(OTHER, "up")
    command(OTHER, "machine", "add", "edge-1")
    other = Lab(lab_layout(OTHER))

    lab.cluster.run("create", "namespace", "only-here")
    assert other.cluster.get("namespace", "only-here") is None
    assert other.inventory.find("edge-1").run("curl", "-sSf", "https://api.flex.internal/version").ok
    lab.cluster.run("delete", "namespace", "only-here", "--wait=false")

    command(OTHER, "down")
    assert command(LAB, "status").ok
    assert look().since(before) == {}


def test_lab_down_cleans_up_after_killed_lab_up(before: Listing) -> None:
    chance = random.Random(20261115)  # noqa: S311 - a seeded sample of moments
    for _ in range(2):
        moment = chance.uniform(0.3, 6)
        kill_while_coming_up(OTHER, moment)

        command(OTHER, "down")

        assert look().since(before) == {}, f"killed after {moment:.2f} s"


@pytest.mark.long
def test_lab_up_restores_cluster_and_machines_after_all_are_killed(before: Listing) -> None:
    command(OTHER, "up")
    command(OTHER, "machine", "add", "edge-1")
    other = Lab(lab_layout(OTHER))
    other.cluster.run("create", "namespace", "remembered")
    for pid in LabCgroups(OTHER).pids():
        os.kill(pid, signal.SIGKILL)

    other.up(Lines())

    assert other.cluster.get("namespace", "remembered")
    assert other.inventory.find("edge-1").run("systemctl", "is-system-running").out.strip() == "running"
    command(OTHER, "down")
    assert look().since(before) == {}


def test_dead_lab_process_is_reported_and_lab_up_restarts_it(lab: Lab) -> None:
    names = ["mirror", "toxiproxy", "azure", "kube-controller-manager", "kube-scheduler"]
    for name in names:
        process = lab.supervisor.process(name)
        assert process
        process.kill(signal.SIGKILL)
        process.wait(5)
    lab.cluster.run("delete", "serviceaccount", "default")

    said = command(LAB, "status", check=False)
    facts = json.loads(command(LAB, "status", "--json", check=False).out)

    assert said.code == 1
    assert "kube-scheduler: " in said.out
    assert [part["name"] for part in facts["parts"] if not part["up"]] == names
    commands = {
        "lab-not-running": ("pool", "bootstrap-data", "none"),
        "mirror-not-running": ("mirror", "list"),
        "fault-proxy-unavailable": ("fault", "list"),
    }
    for name, words in commands.items():
        assert error_name(command(LAB, *words, check=False).err) == name
    with pytest.raises(LabError) as not_ready:
        lab.cluster.prepare(seconds=0)
    assert not_ready.value.name == "cluster-not-ready"

    command(LAB, "up")

    assert command(LAB, "status").ok
    for words in commands.values():
        command(LAB, *words, check=words[0] != "pool")  # there is no pool of this name
    command(LAB, "fault", "clear")
    lab.cluster.prepare()


def test_corrected_principal_command_creates_a_principal(lab: Lab, tmp_path: Path) -> None:
    asked = ("principal", "remedied")
    assert error_name(command(LAB, *asked, check=False).err) == "principal-credential-invalid"
    credential = ["--secret-file", str(tmp_path / "secret")]
    said = command(LAB, *asked, *credential, "--role", "Cluster User", check=False)
    assert error_name(said.err) == "role-unknown"

    said = command(LAB, *asked, *credential, "--role", "Azure Kubernetes Service Cluster User Role")

    assert any(each.client_id == said.out.strip() for each in lab.azure.directory.all())


def test_watch_from_resource_version_0_yields_events(lab: Lab) -> None:
    path = "/api/v1/namespaces?watch=1"
    with pytest.raises(LabError) as ended:
        next(lab.watch(f"{path}&resourceVersion=none", 10))
    assert ended.value.name == "watch-failed"

    assert next(lab.watch(f"{path}&resourceVersion=0", 10))["type"] == "ADDED"


def test_lab_up_with_port_in_use_fails_and_leaves_nothing(before: Listing) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = command(OTHER, "up", "--api-port", str(taken.getsockname()[1]), check=False)

    assert said.code == 3
    assert "is in use" in said.err
    assert "--api-port" in said.err
    assert look().since(before) == {}


@pytest.mark.long
def test_lab_status_fails_for_incomplete_lab(before: Listing) -> None:
    other = Lab(lab_layout(OTHER))
    command(OTHER, "up")
    for name in ("kube-scheduler", "gateway"):
        process = other.supervisor.process(name)
        assert process
        process.stop()
        (other.supervisor.directory(name) / "process.json").unlink()

    said = command(OTHER, "status", check=False)

    assert said.code == 1
    assert any(line.split()[:2] == ["kube-scheduler", "down"] for line in said.out.splitlines())


@pytest.mark.long
def test_lab_up_reports_gateway_port_taken_meanwhile(before: Listing) -> None:
    other = Lab(lab_layout(OTHER))
    command(OTHER, "up")
    gateway = other.supervisor.process("gateway")
    assert gateway
    gateway.stop()
    port = json.loads((other.layout.home / "gateway.json").read_text())
    with socket.create_server(("127.0.0.1", port)):
        said = command(OTHER, "up", check=False)

    assert said.code == 3
    assert "--api-port" in said.err
    command(OTHER, "up")
    assert command(OTHER, "status").ok


@pytest.mark.long
def test_lab_up_repairs_partially_configured_network(before: Listing) -> None:
    other = Lab(lab_layout(OTHER))
    command(OTHER, "up")
    command(OTHER, "machine", "add", "edge-1")
    # As if `ip` was interrupted between two of its commands.
    other.network.cloud.ip("addr flush dev eth0")
    other.network.site_namespace(other.network.site("site-1")).ip("addr flush dev uplink", "link set uplink down")

    command(OTHER, "up")

    assert other.inventory.find("edge-1").run("curl", "-sSf", "https://api.flex.internal/version").ok


@pytest.mark.long
def test_lab_processes_do_not_inherit_environment_or_working_directory(before: Listing, tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("raise SystemExit('a stranger in the current directory')")
    proxy = {"HTTPS_PROXY": "http://192.0.2.1:1", "https_proxy": "http://192.0.2.1:1", "CANARY": "secret"}
    said = run("sh", "-c", f"cd {tmp_path} && exec {COMMAND} --lab {OTHER} up", env=proxy)

    assert said.ok
    for pid in LabCgroups(OTHER).pids():
        assert b"CANARY" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")


@pytest.mark.long
def test_lab_demo_is_refused_while_lab_has_machines(lab: Lab, before: Listing) -> None:
    command(OTHER, "up")
    command(OTHER, "machine", "add", "mine")

    said = command(OTHER, "demo", check=False)

    assert said.code == 2
    assert "lab-in-use" in said.err
    assert command(OTHER, "status").ok


def test_lab_up_with_too_small_disk_fails_and_leaves_nothing(
    before: Listing, tmp_path_factory: pytest.TempPathFactory
) -> None:
    small = tmp_path_factory.mktemp("small")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", small], check=True)
    try:
        said = command(OTHER, "up", check=False, env={"AKS_FLEX_LAB_HOME": str(small / "labs")})

        assert said.code == 3
        assert "AKS_FLEX_LAB_HOME" in said.err
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)
    assert look().since(before) == {}


def test_concurrent_lab_command_is_refused(lab: Lab) -> None:
    with lab.exclusive():
        said = command(LAB, "machine", "add", "late", check=False)

    assert said.code == 1
    assert "lab-busy" in said.err


def test_lab_logs_and_kubeconfig_are_available(lab: Lab) -> None:
    said = command(LAB, "logs", "nobody", check=False)
    assert error_name(said.err) == "lab-component-unknown"
    listed = said.err.partition("The known names are: ")[2].partition(".")[0].split(", ")
    assert "etcd" in command(LAB, "logs", listed[0], "-n", "5").out
    assert '"verb"' in command(LAB, "logs", "audit", "-n", "1").out
    kubeconfig = command(LAB, "kubeconfig", "--path").out.strip()
    nodes = command(LAB, "kubectl", f"--kubeconfig={kubeconfig}", "get", "--raw", "/readyz")
    assert nodes.out == "ok"
    assert (lab.admin_kubeconfig.stat().st_mode & 0o777) == 0o600
