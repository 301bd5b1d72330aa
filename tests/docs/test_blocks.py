"""Runs the marked blocks of the documentation, in the order of each page."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.processes import run
from tests.agents import prepare
from tests.docs.blocks import PLACES, blocks_of, marks, pages, runnable
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from tests.docs.blocks import Block

PROGRAMS = Path(sys.executable).parent
RUNNABLE = runnable()
FILLED_IN = "/root/filled-in.json"


def test_every_run_marker_precedes_a_block_and_names_a_known_place() -> None:
    for page in pages():
        found = blocks_of(page)
        assert len(found) == marks(page.read_text()), page
        assert {each.place for each in found} <= PLACES, page
        assert all(each.script.strip() for each in found), page


class Folder:
    """An empty directory with our programs and the kubeconfig of a cluster."""

    def __init__(self, place: Path, lab: Lab) -> None:
        self.place = place
        (place / "admin.kubeconfig").write_text(lab.cluster.kubeconfig.read_text())
        # The lab's provider, or that of an earlier page, has marked the cluster as its own.
        mark = ("-n", "kube-system", "delete", "secret", "aks-flex-rp", "--ignore-not-found")
        run(str(lab.cluster.kubectl), f"--kubeconfig={place / 'admin.kubeconfig'}", *mark)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.environment = {
            "PATH": f"{PROGRAMS}:{lab.cluster.kubectl.parent}:{os.environ['PATH']}",
            "HOME": str(place),
            "KUBECONFIG": str(place / "admin.kubeconfig"),
            "AKS_FLEX_LAB": lab.layout.name,
            "AKS_FLEX_LAB_CACHE": str(lab.layout.cache),
            "AKS_FLEX_RP_STATE": str(place / "state"),
            "AKS_FLEX_RP_LISTEN": f"127.0.0.1:{port}",
        }

    def do(self, block: Block) -> str:
        done = run(
            "bash",
            "-euo",
            "pipefail",
            "-c",
            block.script,
            cwd=self.place,
            env=self.environment,
            check=False,
            timeout=240,
        )
        assert done.ok, f"{block.page}:{block.line}: exit {done.code}\n{done.out}\n{done.err}"
        return done.out

    @contextmanager
    def kept(self, block: Block) -> Iterator[None]:
        """Starts a service and waits until it reports that it is ready."""
        with (self.place / "said.log").open("wb") as log:
            words = ["bash", "-c", f"exec {block.script}"]
            process = subprocess.Popen(words, cwd=self.place, env=self.environment, stdout=log, stderr=log)
        try:
            until(lambda: "serves" in (self.place / "said.log").read_text(), f"{block.page}:{block.line} serves")
            assert process.poll() is None
            yield
        finally:
            process.terminate()
            process.wait(timeout=60)


@pytest.fixture
def folder(lab: Lab, tmp_path: Path) -> Folder:
    return Folder(tmp_path, lab)


@pytest.fixture(scope="module")
def machine(lab: Lab) -> Iterator[EdgeMachine]:
    """Yields one machine for all pages, with the agent and the settings that a user fills in."""
    with lab.exclusive():
        machine = lab.inventory.add("typed-1", DebianRelease.BOOKWORM, "site-1")
    prepare(lab, machine)
    machine.run("mv", "/etc/aks-flex-node/config.json", FILLED_IN)
    yield machine
    with lab.exclusive():
        lab.inventory.remove(machine)
    lab.cluster.run("delete", "node", machine.name, "--ignore-not-found", "--wait=false")


SHORT = [page for page, blocks in RUNNABLE.items() if not all(each.long for each in blocks)]
LONG = [page for page, blocks in RUNNABLE.items() if any(each.long for each in blocks)]


@pytest.mark.parametrize("page", SHORT)
def test_short_command_blocks_of_page_run_successfully(page: str, folder: Folder, machine: EdgeMachine) -> None:
    typed([each for each in RUNNABLE[page] if not each.long], folder, machine)


@pytest.mark.long
@pytest.mark.parametrize("page", LONG)
def test_all_command_blocks_of_page_run_successfully(page: str, folder: Folder, machine: EdgeMachine) -> None:
    typed(RUNNABLE[page], folder, machine)


def typed(blocks: list[Block], folder: Folder, machine: EdgeMachine) -> None:
    with ExitStack() as services:
        for block in blocks:
            if block.stays:
                services.enter_context(folder.kept(block))
            elif block.place == "here":
                folder.do(block)
            else:
                words = ("env", f"AKS_FLEX_NODE_CONFIG={FILLED_IN}", "bash", "-euo", "pipefail", "-c", block.script)
                done = machine.run(*words, check=False, timeout=240)
                assert done.ok, f"{block.page}:{block.line}: exit {done.code}\n{done.out}\n{done.err}"
