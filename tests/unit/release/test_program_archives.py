"""Tests of archives: packages for several Python versions in one tree."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

from release.checkout import HOME
from release.program_archives import AGENT, PROVIDER, PackageTree, merge_trees, pack

if TYPE_CHECKING:
    from pathlib import Path


def tree(folder: Path, python: str, files: dict[str, str]) -> PackageTree:
    for name, content in files.items():
        path = folder / python / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return PackageTree(python, folder / python)


def test_files_identical_for_all_pythons_are_stored_once(tmp_path: Path) -> None:
    trees = [tree(tmp_path, python, {"yaml/__init__.py": "same"}) for python in ("3.11", "3.13")]
    assert set(merge_trees(trees)) == {"yaml/__init__.py"}


def test_compiled_modules_of_all_pythons_are_stored_side_by_side(tmp_path: Path) -> None:
    trees = [
        tree(tmp_path, "3.11", {"yaml/__init__.py": "same", "yaml/_yaml.cpython-311.so": "a"}),
        tree(tmp_path, "3.13", {"yaml/__init__.py": "same", "yaml/_yaml.cpython-313.so": "b"}),
    ]
    assert set(merge_trees(trees)) == {"yaml/__init__.py", "yaml/_yaml.cpython-311.so", "yaml/_yaml.cpython-313.so"}


def test_package_differing_on_older_python_is_stored_separately(tmp_path: Path) -> None:
    trees = [
        tree(tmp_path, python, {"web/__init__.py": "same", "web/version.py": wanted})
        for python, wanted in (("3.10", "1"), ("3.12", "2"), ("3.13", "2"))
    ]
    placed = merge_trees(trees)
    names = {"web/__init__.py", "web/version.py"}
    assert set(placed) == names | {f"python3.10/{name}" for name in names}
    assert (placed["python3.10/web/version.py"].read_text(), placed["web/version.py"].read_text()) == ("1", "2")


def test_package_needed_by_one_python_is_visible_only_to_it(tmp_path: Path) -> None:
    trees = [tree(tmp_path, "3.10", {"backport.py": "x", "same.py": "y"}), tree(tmp_path, "3.13", {"same.py": "y"})]
    assert set(merge_trees(trees)) == {"python3.10/backport.py", "same.py"}


def test_merge_excludes_installer_records_scripts_and_bytecode(tmp_path: Path) -> None:
    files = {"a-1.dist-info/RECORD": "", "a-1.dist-info/METADATA": "m", "bin/a": "", "a/__pycache__/b.pyc": ""}
    assert set(merge_trees([tree(tmp_path, "3.11", files)])) == {"a-1.dist-info/METADATA"}


def test_agent_and_provider_archives_exclude_each_other() -> None:
    files = [path for path in HOME.joinpath("src").rglob("*") if path.is_file()]
    agent, provider = (set(program.own_sources(files)) for program in (AGENT, PROVIDER))
    assert "aks_flex_node/agent/components/kubelet/kubelet.service" in agent
    assert not any(name.startswith(("aks_flex_rp/", "aks_flex_lab/")) for name in agent)
    assert "aks_flex_rp/dashboard/templates/base.html" in provider
    assert not any(name.startswith(("aks_flex_node/agent/", "aks_flex_lab/")) for name in provider)


def test_program_archive_is_reproducible(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a")
    (tmp_path / "b.py").write_text("b")
    one = pack(AGENT, {"a.py": tmp_path / "a.py", "b.py": tmp_path / "b.py"}, moment=1_700_000_000)
    (tmp_path / "a.py").touch()
    assert pack(AGENT, {"b.py": tmp_path / "b.py", "a.py": tmp_path / "a.py"}, moment=1_700_000_000) == one


def test_only_command_is_executable_and_all_members_belong_to_root(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a")
    with tarfile.open(fileobj=io.BytesIO(pack(AGENT, {"a.py": tmp_path / "a.py"}, moment=1))) as made:
        members = {member.name: member for member in made}
    assert [name for name, member in members.items() if member.mode & 0o111] == ["bin/aks-flex-node"]
    assert {(member.uid, member.gid, member.mtime) for member in members.values()} == {(0, 0, 1)}
