"""The remedies of errors of the lab's tools are followed: a tool that could not be used or installed then is."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from dataclasses import dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.cli import app
from aks_flex_lab.layout import LabLayout
from aks_flex_lab.progress import NO_PROGRESS
from aks_flex_lab.tools import catalog
from aks_flex_lab.tools.go_builder import GoBuilder, find_go
from aks_flex_lab.tools.installer import program_version_output
from aks_flex_lab.tools.python_tools import PythonTool, PythonToolDirectory
from aks_flex_lab.tools.recipes import BuildRecipe, Command, GoTool, machine_arch
from aks_flex_lab.tools.toolbox import Toolbox
from tests.remedies.catalogue import advice, command
from tests.remedies.lab_harness import FAKE_GO, LabPrompt, failure, put_program
from tests.remedies.vpn_harness import parse
from tests.unit.lab.tools.fakes import FakeBuilder, store_fake_tool
from tests.unit.lab.tools.test_installer import TOOL, installer, online, shelf_in
from tests.unit.lab.tools.test_releases import ARCHIVE

if TYPE_CHECKING:
    from collections.abc import Iterator

NOWHERE = "http://127.0.0.1:9/simple"  # the discard port, on which nothing listens
NAME, RELEASE = "tiny-tool", "1.0.0"


@pytest.fixture
def prompt(tmp_path: Path) -> LabPrompt:
    return LabPrompt(LabLayout("test", tmp_path / "labs", tmp_path / "cache"))


def store(prompt: LabPrompt, name: str, version: str | None = None) -> None:
    """Installs a tool with small programs."""
    tool = catalog.find_tool(name, version)
    assert isinstance(tool, GoTool)
    store_fake_tool(Toolbox(prompt.layout.cache).tool_directory(tool))


@pytest.mark.remedy("tool-missing")
def test_missing_tool_is_found_after_its_installation(tmp_path: Path) -> None:
    box = Toolbox(tmp_path)
    assert failure(box.path, "runc", "runc").name == "tool-missing"

    assert parse(app, command("tool-missing", "aks-flex-lab tools install"))["source"] == "auto"
    runc = catalog.find_tool("runc")
    assert isinstance(runc, GoTool)
    installer(tmp_path).install([box.tool_directory(replace(runc, version_text=""))])

    assert box.path("runc", "runc").exists()


@pytest.mark.remedy("tool-unknown", "tool-version-unknown", "command-unknown", "source-unknown")
@pytest.mark.parametrize(
    ("wrong", "name", "words", "right"),
    [
        (["path", "etdc", "etcd"], "tool-unknown", "Use a name from the first column.", []),
        (["path", "kubernetes@9.9.9", "kubelet"], "tool-version-unknown", "Use a version from the list", []),
        (["path", "kubernetes", "kubelt"], "command-unknown", "Use a program of the tool", []),
        (["install", "etcd", "--source", "moon"], "source-unknown", "or omit the option", ["install", "etcd"]),
    ],
)
def test_corrected_tools_command_succeeds(
    prompt: LabPrompt, wrong: list[str], name: str, words: str, right: list[str]
) -> None:
    assert prompt.error("tools", *wrong) == name

    advice(name, words)
    if name == "tool-unknown":
        first_column = [line.split()[0] for line in prompt.run("tools", "list").splitlines()]
        right = ["path", next(each for each in first_column if each.startswith("etcd")), "etcd"]
    elif name == "tool-version-unknown":
        [selector] = command(name, "kubernetes@")
        store(prompt, "kubernetes", selector.partition("@")[2])
        right = ["path", selector, "kubelet"]
    elif name == "command-unknown":
        store(prompt, "kubernetes")
        right = command(name, "aks-flex-lab tools path")[2:]
    prompt.run("tools", *right)


@pytest.mark.remedy("tool-directory-missing")
def test_program_of_a_debian_tool_has_a_path(prompt: LabPrompt) -> None:
    assert failure(Toolbox(prompt.layout.cache).folder, "etcd").name == "tool-directory-missing"

    printed = prompt.run(*command("tool-directory-missing", "aks-flex-lab tools path")[1:])

    assert Path(printed.strip()).exists()


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("tool-download-failed", "aks-flex-lab tools install"),
        ("tool-download-failed", "aks-flex-lab tools install --source build"),
        ("tool-checksum-mismatch", "aks-flex-lab tools install --source build"),
        ("checksum-file-unreadable", "aks-flex-lab tools install --source build"),
        ("release-incomplete", "aks-flex-lab tools install NAME@VERSION --source build"),
        ("tool-version-check-failed", "aks-flex-lab tools install NAME@VERSION"),
    ],
)
@pytest.mark.remedy("tool-download-failed", "tool-checksum-mismatch", "checksum-file-unreadable")
@pytest.mark.remedy("release-incomplete", "tool-version-check-failed")
def test_tool_with_a_bad_release_is_installed_by_the_remedy(tmp_path: Path, name: str, start: str) -> None:
    tool, web = TOOL, online(first="1.2.3", second="1.2.3")
    url = f"publisher.example/v1.2.3/{machine_arch()}/second"
    if name == "tool-download-failed":
        web.cuts = [100] * 4
        web.files[url] = b"1.2.3" * 200
        web.files[f"{url}.sha256"] = hashlib.sha256(web.files[url]).hexdigest().encode()
    elif name == "tool-checksum-mismatch":
        web.files[url] = b"1.2.3, changed by a proxy"
    elif name == "checksum-file-unreadable":
        web.files[f"{url}.sha256"] = b"<html>Please log in</html>"
    elif name == "release-incomplete":
        tool, archive = archived_tool(), f"publisher.example/{ARCHIVE.name}"
        web.files[archive] = packed("bin/one")
        web.files[f"{archive}.sha256"] = hashlib.sha256(web.files[archive]).hexdigest().encode()
    else:
        web = online(first="1.2.3", second="9.9.9")
    shelf = shelf_in(tmp_path, tool)
    assert failure(installer(tmp_path, web=web).install, [shelf], "release").name == name

    values = {"NAME": tool.name, "VERSION": tool.version} if "NAME" in start else {}
    followed = parse(app, command(name, start, **values))
    assert not values or followed["names"] == [tool.selector]
    web.cuts = []
    if name == "tool-version-check-failed":
        web = online(first="1.2.3", second="1.2.3")  # the publisher corrected its release
    installer(tmp_path, FakeBuilder(), web).install([shelf], followed["source"])

    assert shelf.ready


def archived_tool() -> GoTool:
    file = replace(ARCHIVE, checksums=(replace(TOOL.release[0].checksums[0], url=f"{ARCHIVE.url}.sha256"),))
    commands = (Command("one", "example/one"), Command("two", "example/two"))
    return GoTool("archived", "1.2.3", commands, BuildRecipe("pause"), (file,))


def packed(*names: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.mode = 4, 0o755
            archive.addfile(info, io.BytesIO(b"text"))
    return out.getvalue()


@pytest.mark.remedy("tool-build-failed")
def test_tool_is_built_after_the_module_proxy_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_program(tmp_path / "bin", "go", FAKE_GO)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("GOPROXY", raising=False)
    pause = catalog.find_tool("pause")
    assert isinstance(pause, GoTool)
    into = tmp_path / "into"
    into.mkdir()

    def build() -> None:
        GoBuilder(tmp_path).build(pause, machine_arch(), into, tmp_path / "logs/pause.log")

    error = failure(build)
    assert error.name == "tool-build-failed"
    assert "no such host" in error.message

    advice("tool-build-failed", "Set `GOPROXY` to a module proxy that this machine can reach")
    monkeypatch.setenv("GOPROXY", "https://proxy.example")
    build()

    assert (into / "pause").exists()


@pytest.mark.remedy("go-not-found")
def test_newer_go_is_used_after_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "UV_INDEX_URL"):
        monkeypatch.setenv(name, NOWHERE)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "5")
    assert failure(find_go, "99.0", tmp_path).name == "go-not-found"

    advice("go-not-found", "Install a newer version of Go")
    go = put_program(tmp_path / "bin", "go", FAKE_GO)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    assert find_go("99.0", tmp_path) == go


@dataclass(frozen=True)
class OwnPythonTool(PythonTool):
    """A tool whose requirements are in a file of the test."""

    file: Path = Path()

    @property
    def requirements(self) -> Path:
        return self.file


def publish_package(index: Path) -> str:
    """Writes a package index with one wheel; returns the pinned requirement."""
    module = NAME.replace("-", "_")
    wheel = index / NAME / f"{module}-{RELEASE}-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    about = f"{module}-{RELEASE}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{module}/__main__.py", f"print('{RELEASE}')\n")
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {RELEASE}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (wheel.parent / "index.html").write_text(f'<a href="{wheel.name}#sha256={digest}">{wheel.name}</a>\n')
    return f"{NAME}=={RELEASE} --hash=sha256:{digest}\n"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Yields the address of a package index, and the requirement of its package."""
    requirement = publish_package(tmp_path / "index")
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "index"))
    )
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", requirement
    server.shutdown()
    server.server_close()


@pytest.mark.remedy("tool-packages-missing")
def test_python_tool_is_installed_from_a_reachable_index(
    tmp_path: Path, index: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, requirement = index
    (tmp_path / "requirements.txt").write_text(requirement)
    tool = OwnPythonTool(NAME, RELEASE, "tiny_tool", ("tiny",), (), megabytes=1, file=tmp_path / "requirements.txt")
    folder = PythonToolDirectory(tmp_path / "tools", tool, machine_arch())
    monkeypatch.setenv("UV_NO_CACHE", "1")
    monkeypatch.setenv("UV_INDEX_URL", NOWHERE)
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "5")
    assert failure(folder.make, NO_PROGRESS).name == "tool-packages-missing"

    advice("tool-packages-missing", "Make the package index reachable. If you configured one for pip, also set")
    [variable] = command("tool-packages-missing", "UV_INDEX_URL")
    monkeypatch.setenv(variable, address)
    assert parse(app, command("tool-packages-missing", "aks-flex-lab tools install"))["names"] == ["azure-cli"]
    folder.make(NO_PROGRESS)

    assert folder.ready


@pytest.mark.remedy("tool-version-check-failed")
def test_program_of_another_architecture_is_replaced(tmp_path: Path) -> None:
    shelf = shelf_in(tmp_path)

    def install(first: str) -> None:
        making = installer(tmp_path, web=online(first=first, second="#!/bin/sh\necho 1.2.3\n"))
        making.version_output = program_version_output
        making.install([shelf], source="release")

    error = failure(install, "a program that the kernel cannot run")
    assert error.name == "tool-version-check-failed"
    assert "Exec format error" in (tmp_path / "logs" / f"example-1.2.3-{machine_arch()}.log").read_text()

    argv = command("tool-version-check-failed", "aks-flex-lab tools install", NAME="example", VERSION="1.2.3")
    assert parse(app, argv)["names"] == ["example@1.2.3"]
    install("#!/bin/sh\necho 1.2.3\n")

    assert shelf.ready
