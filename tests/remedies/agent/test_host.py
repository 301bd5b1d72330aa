"""Follows the remedies of problems of the machine, at the commands that report them."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.components import runc
from aks_flex_node.errors import MachineError
from tests.remedies.catalogue import advice, command
from tests.service.agent.bundle_servers import Answer, bundle_server
from tests.unit.agent.builders import JOIN, Ready, empty_host, engine_on
from tests.unit.agent.config.builders import settings
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_node.agent.reconcile.resources import ProgramTree
    from tests.remedies.agent.sandbox import Sandbox

CREDENTIALS = ("bootstrap", "--only", "credentials", "--skip-phase", "preflight")
SYSTEM = ("bootstrap", "--only", "system", "--skip-phase", "preflight")
CA = "/etc/kubernetes/certs/ca.crt"


@pytest.fixture
def configured(machine: Sandbox) -> Sandbox:
    machine.configure()
    return machine


@pytest.mark.remedy("action-failed")
def test_missing_kernel_module_is_installed_and_the_run_continues(configured: Sandbox) -> None:
    configured.sh("sed -i /br_netfilter/d /run/modules")
    failed = configured.flex(*SYSTEM)
    assert failed.error == "action-failed"
    assert "Module br_netfilter not found" in failed.err
    done = configured.sh("stat --format=%y /etc/modules-load.d/aks-flex-node.conf")

    advice("action-failed", "Correct the cause, then run the same command again. It continues where it stopped.")
    configured.sh("echo br_netfilter >>/run/modules")
    assert configured.flex(*SYSTEM).code == 0
    assert configured.sh("stat --format=%y /etc/modules-load.d/aks-flex-node.conf") == done


@pytest.mark.remedy("sysctl-failed")
def test_kernel_setting_is_allowed_or_its_module_loaded(configured: Sandbox) -> None:
    configured.sh("mount -o remount,ro /proc/sys")  # as in a container
    assert configured.flex(*SYSTEM).error == "sysctl-failed"
    advice("sysctl-failed", "In a container, allow the setting on the container's host.")
    configured.sh("mount -o remount,rw /proc/sys; touch /run/no-bridge")  # now only the module's settings are missing
    failed = configured.flex(*SYSTEM)
    assert failed.error == "sysctl-failed"
    assert "net.bridge" in failed.err

    advice("sysctl-failed", "Load the kernel module that the key belongs to.")
    configured.sh("rm /run/no-bridge; modprobe br_netfilter")
    assert configured.flex(*SYSTEM).code == 0
    assert configured.sh("cat /proc/sys/net/bridge/bridge-nf-call-iptables").strip() == "1"


@pytest.mark.remedy("filesystem-read-only")
def test_read_only_file_system_is_mounted_writable(configured: Sandbox) -> None:
    configured.sh("mkdir /etc/kubernetes; mount -t tmpfs -o ro tmpfs /etc/kubernetes")
    assert configured.flex(*CREDENTIALS).error == "filesystem-read-only"

    advice("filesystem-read-only", "mount the file system writable, then run the same command again")
    configured.sh("mount -o remount,rw /etc/kubernetes")
    assert configured.flex(*CREDENTIALS).code == 0


@pytest.mark.remedy("mount-below-path")
def test_file_system_in_place_of_a_file_is_unmounted(configured: Sandbox) -> None:
    assert configured.flex(*CREDENTIALS).code == 0
    configured.sh(f"rm {CA}; mkdir -p {CA}/mine; mount -t tmpfs tmpfs {CA}/mine; echo mine >{CA}/mine/file")
    refused = configured.flex(*CREDENTIALS)
    assert refused.error == "mount-below-path"
    assert f"{CA}/mine" in refused.err
    assert configured.sh(f"cat {CA}/mine/file") == "mine\n"

    advice("mount-below-path", "Unmount the file system, then run the same command again.")
    configured.sh(f"umount {CA}/mine")
    assert configured.flex(*CREDENTIALS).code == 0
    assert configured.sh(f"cat {CA}").startswith("-----BEGIN CERTIFICATE")


@pytest.mark.remedy("disk-full")
def test_full_disk_is_freed_also_by_removing_downloads(configured: Sandbox) -> None:
    data = "/var/lib/aks-flex-node"
    configured.sh(
        f"mkdir {data}; mount -t tmpfs -o size=256k tmpfs {data}; mkdir -p {data}/artifacts/sha256-{'ab' * 32}"
    )
    configured.sh(f"dd if=/dev/zero of={data}/artifacts/sha256-{'ab' * 32}/old bs=1k count=240 2>/dev/null || true")
    configured.sh(f"dd if=/dev/zero of={data}/mine bs=1k count=100 2>/dev/null || true")
    assert configured.flex(*CREDENTIALS).error == "disk-full"

    clean = configured.types(command("disk-full", "aks-flex-node artifacts clean"))
    assert clean.code == 0, clean.err
    assert configured.flex(*CREDENTIALS).code == 0
    assert configured.sh(f"ls {data}/mine")


@pytest.mark.remedy("unbootstrap-incomplete")
def test_mount_that_prevents_the_removal_is_found_and_unmounted(configured: Sandbox) -> None:
    assert configured.flex(*CREDENTIALS).code == 0
    place = "/var/lib/aks-flex-node/artifacts"
    configured.sh(f"mkdir {place}/mine; mount -t tmpfs tmpfs {place}/mine; echo mine >{place}/mine/file")
    again = command("unbootstrap-incomplete", "aks-flex-node unbootstrap")
    for _ in range(2):
        left = configured.types(again)
        assert left.error == "unbootstrap-incomplete"
        assert f"{place}/mine is still mounted" in left.err
    found = configured.sh(" ".join(command("unbootstrap-incomplete", "grep PATH", PATH=place)))
    assert f" {place}/mine " in found

    configured.sh(f"umount {place}/mine")
    assert configured.types(again).code == 0
    assert configured.sh("ls -d /var/lib/aks-flex-node /opt/aks-flex-node 2>/dev/null || true") == ""


@pytest.fixture
def waiting(machine: Sandbox, tmp_path: Path) -> Iterator[tuple[list[str], threading.Event]]:
    """Yields a join that runs until the event, because the server of its configuration does not answer."""
    go = threading.Event()
    body = json.dumps({"config": json.loads(settings(JOIN)), "configVersion": "1"}).encode()
    with bundle_server(tmp_path / "tls") as server:
        server.answers["/configs/one"] = [Answer(body=body)]
        server.before_answer = lambda: go.wait(120)
        yield (
            [
                "bootstrap",
                "--only",
                "credentials",
                "--skip-phase",
                "preflight",
                "--config-url",
                server.url("/configs/one"),
            ],
            go,
        )
        go.set()


@pytest.mark.remedy("agent-locked")
def test_command_waits_for_another_process_or_stops_it(
    configured: Sandbox, waiting: tuple[list[str], threading.Event]
) -> None:
    words, go = waiting
    first = configured.start(words)
    until(lambda: bool(configured.sh("cat /run/aks-flex-node.lock || true").strip().isdigit()), "it has the lock")
    assert configured.flex(*CREDENTIALS).error == "agent-locked"

    configured.sh(f"echo {first.pid} >/run/aks-flex-node-job.pid")
    configured.sh(" ".join(command("agent-locked", "systemctl stop")))
    assert configured.wait(first).code != 0
    assert configured.flex(*CREDENTIALS).code == 0

    second = configured.start(words)
    until(lambda: configured.sh("cat /run/aks-flex-node.lock || true").strip() == str(second.pid), "it has the lock")
    assert configured.flex(*CREDENTIALS).error == "agent-locked"
    advice("agent-locked", "Wait until the process ends, then run the command again.")
    go.set()
    assert configured.wait(second).error == ""
    assert configured.flex(*CREDENTIALS).code == 0


class SlowOnce(Ready):
    """A program stager whose first download takes longer than the time limit of the step."""

    limit = threading.Event()

    def finish(self, program: ProgramTree, seconds: float) -> None:
        self.limit.wait(seconds + 0.01)
        super().finish(program, max(seconds, 1.0))


@pytest.mark.remedy("command-timeout")
def test_step_that_timed_out_continues_when_it_is_run_again() -> None:
    host = empty_host()
    slow = replace(runc.COMPONENT, timeout_seconds=0.2)
    engine = engine_on(host)
    engine.stager = SlowOnce(host)
    with pytest.raises(MachineError) as caught:
        engine.apply(slow)
    assert caught.value.name == "command-timeout"

    advice("command-timeout", "Run the same command again. Downloads resume where they stopped.")
    again = engine_on(host)
    again.stager = Ready(host)
    done = [str(action) for action in again.apply(slow)]
    assert not any(line.startswith("install ") for line in done), "what was downloaded and installed is kept"
    assert again.plan(slow).actions == ()
