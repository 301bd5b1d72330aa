"""The remedies of errors of the lab's host and of its cleanup are followed on this machine."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.kernel.cgroups import LabCgroups
from aks_flex_lab.kernel.mounts import remove_tree
from aks_flex_lab.kernel.namespaces import NetworkNamespace
from aks_flex_lab.layout import LabLayout
from aks_flex_lab.processes import run, spawn
from tests.remedies.lab_harness import LabPrompt, failure
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAB = "remedy"  # no lab of this name is started; only its kernel objects are used


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[LabLayout]:
    yield LabLayout(LAB, tmp_path / "labs", tmp_path / "cache")
    LabCgroups(LAB).kill()
    LabCgroups(LAB).remove()


def test_second_down_removes_what_a_program_created_meanwhile(layout: LabLayout) -> None:
    """A program creates a network namespace of the lab again whenever it is removed."""
    prompt, ended, namespace = LabPrompt(layout), threading.Event(), NetworkNamespace(f"{layout.prefix}left")

    def create() -> None:
        while not ended.is_set():
            run("ip", "netns", "add", namespace.name, check=False)

    program = threading.Thread(target=create)
    program.start()
    names: list[str] = []

    def down() -> bool:
        code, text = prompt.invoke("down")
        names.extend(["lab-cleanup-incomplete"] if "lab-cleanup-incomplete" in text else [])
        return code == 1 and bool(names)

    try:
        until(down, "the lab reports what is left", 60)
    finally:
        ended.set()
        program.join()

    prompt.run("down")

    assert not namespace.exists


def test_down_removes_a_cgroup_that_contained_a_process(layout: LabLayout, tmp_path: Path) -> None:
    groups = LabCgroups(LAB)
    process = spawn(groups.join_command("part-x", ["sleep", "600"]), log=tmp_path / "log")
    until(lambda: process.pid in groups.pids("part-x"), "the process is in the cgroup", 30)
    assert failure(groups.remove, "part-x", seconds=0).name == "process-not-stopped"

    prompt = LabPrompt(layout)
    prompt.run("down")

    assert groups.roots() == []
    assert not process.alive


def test_directory_is_removed_after_its_mount_is_unmounted(tmp_path: Path) -> None:
    directory, disk = tmp_path / "lab", tmp_path / "disk"
    point = directory / "mounted"
    point.mkdir(parents=True)
    disk.mkdir()
    (disk / "file").write_text("kept")
    run("mount", "--bind", disk, point)
    try:
        error = failure(remove_tree, directory)
        assert error.name == "mount-conflict"
        assert str(point) in error.message
    finally:
        run("umount", point)
    remove_tree(directory)

    assert not directory.exists()
    assert (disk / "file").read_text() == "kept"
