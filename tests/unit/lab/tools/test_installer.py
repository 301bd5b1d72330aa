"""Tests of tool installation: existing tools are kept, incomplete ones are invisible, invalid ones are rejected."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.errors import ToolError
from aks_flex_lab.progress import ProgressReporter
from aks_flex_lab.tools.installer import ToolInstaller
from aks_flex_lab.tools.recipes import BuildRecipe, Checksum, Command, GoTool, ReleaseFile, machine_arch
from aks_flex_lab.tools.releases import ReleaseDownloader
from aks_flex_lab.tools.tool_store import ToolDirectory
from tests.unit.lab.tools.fakes import FakeBuilder, FakeTransport, read_program

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path


def release(command: str) -> ReleaseFile:
    url = f"publisher.example/v1.2.3/{{arch}}/{command}"
    return ReleaseFile(url, (Checksum(f"{url}.sha256", named=False),), (command,))


COMMANDS = (Command("first", "example/first", ("--version",)), Command("second", "example/second", ("--version",)))
TOOL = GoTool(
    "example", "1.2.3", COMMANDS, BuildRecipe("pause"), (release("first"), release("second")), version_text="1.2.3"
)


class RecordingProgress(ProgressReporter):
    """Records progress."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.waiting = threading.Event()
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def task(self, what: str, doing: Callable[[], str]) -> AbstractContextManager[None]:
        if what == "tools" and "waiting" in doing():
            self.waiting.set()
        return nullcontext()

    def finished(self, what: str, how: str, seconds: float) -> None:
        assert seconds >= 0
        self.lines.append((what, how))


def online(**contents: str) -> FakeTransport:
    files: dict[str, bytes] = {}
    for command, content in contents.items():
        url = f"publisher.example/v1.2.3/{machine_arch()}/{command}"
        files[url] = content.encode()
        files[f"{url}.sha256"] = hashlib.sha256(content.encode()).hexdigest().encode()
    return FakeTransport(files)


def shelf_in(tmp_path: Path, tool: GoTool = TOOL) -> ToolDirectory:
    return ToolDirectory(tmp_path / "tools", tool, machine_arch())


def installer(tmp_path: Path, builder: FakeBuilder | None = None, web: FakeTransport | None = None) -> ToolInstaller:
    return ToolInstaller(
        logs=tmp_path / "logs",
        lock=tmp_path / "tools" / ".lock",
        builder=builder or FakeBuilder(),
        downloader=ReleaseDownloader(web or FakeTransport(), seconds=0.5, pause=0),
        progress=RecordingProgress(),
        purpose="lab try",
        version_output=read_program,
    )


def visible_names(tmp_path: Path) -> list[str]:
    """Returns the visible names in the cache; hidden names are builds in progress."""
    return [path.name for path in (tmp_path / "tools").iterdir() if not path.name.startswith(".")]


def test_tool_is_built_and_stored_when_offline(tmp_path: Path) -> None:
    shelf, making = shelf_in(tmp_path), installer(tmp_path)
    making.install([shelf])
    manifest = shelf.manifest()
    assert manifest is not None
    assert (manifest.source, [file.path for file in manifest.files]) == ("build", ["first", "second"])
    assert manifest.files[0].sha256 == hashlib.sha256(shelf.command("first").read_bytes()).hexdigest()
    assert isinstance(making.progress, RecordingProgress)
    assert making.progress.lines == [("example 1.2.3", "built")]
    assert making.progress.messages == [
        "Building for lab try: example 1.2.3. Their releases cannot be downloaded from here. "
        "This takes less than a minute on two cores, once."
    ]
    making.install([shelf])
    assert len(making.progress.messages) == 1


def test_reachable_release_is_preferred_to_build(tmp_path: Path) -> None:
    shelf, builder = shelf_in(tmp_path), FakeBuilder()
    installer(tmp_path, builder, online(first="I am 1.2.3", second="1.2.3 too")).install([shelf])
    manifest = shelf.manifest()
    assert manifest is not None
    assert manifest.source == "release"
    assert shelf.command("first").read_text() == "I am 1.2.3"
    assert shelf.command("first").stat().st_mode & 0o111
    assert builder.built == []
    assert visible_names(tmp_path) == [shelf.path.name]
    assert not shelf.downloads.exists()


def test_interrupted_build_stores_nothing_and_resumes(tmp_path: Path) -> None:
    shelf = shelf_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        installer(tmp_path, FakeBuilder(breaks_after=1)).install([shelf])
    assert shelf.manifest() is None
    assert visible_names(tmp_path) == []
    assert (shelf.build_directory("build") / "first").exists()
    installer(tmp_path).install([shelf])
    assert visible_names(tmp_path) == [shelf.path.name]
    assert not shelf.build_directory("build").exists()


def test_program_reporting_another_version_is_refused(tmp_path: Path) -> None:
    shelf = shelf_in(tmp_path)
    with pytest.raises(ToolError, match=r"second does not report '1\.2\.3'") as refused:
        installer(tmp_path, web=online(first="1.2.3", second="9.9.9")).install([shelf])
    assert refused.value.name == "tool-version-check-failed"
    log = tmp_path / "logs" / f"example-1.2.3-{machine_arch()}.log"
    assert str(log) in refused.value.hint
    assert "9.9.9" in log.read_text()
    assert shelf.manifest() is None
    assert not shelf.build_directory("release").exists()


def test_damaged_tool_is_rebuilt(tmp_path: Path) -> None:
    shelf, builder = shelf_in(tmp_path), FakeBuilder()
    installer(tmp_path, builder).install([shelf])
    shelf.command("second").write_text("cut")
    assert shelf.manifest() is None
    installer(tmp_path, builder).install([shelf])
    assert shelf.manifest() is not None
    assert len(builder.built) == 2


def test_only_tools_without_release_are_prepared_for_build(tmp_path: Path) -> None:
    builder = FakeBuilder()
    bare = dataclasses.replace(TOOL, name="bare", release=())
    web = online(first="1.2.3", second="1.2.3")
    installer(tmp_path, builder, web).install([shelf_in(tmp_path), shelf_in(tmp_path, bare)])
    assert builder.prepared == ["bare 1.2.3"]


def test_concurrent_installations_build_a_tool_once(tmp_path: Path) -> None:
    """The second installation starts during the build of the first, and waits."""
    second = installer(tmp_path)

    class SlowBuilder(FakeBuilder):
        def build(self, tool: GoTool, arch: str, into: Path, log: Path) -> None:
            thread.start()
            assert isinstance(second.progress, RecordingProgress)
            assert second.progress.waiting.wait(10)
            super().build(tool, arch, into, log)

    shelf, slow = shelf_in(tmp_path), SlowBuilder()
    thread = threading.Thread(target=second.install, args=([shelf],))
    installer(tmp_path, slow).install([shelf])
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(second.builder, FakeBuilder)
    assert (slow.built, second.builder.built) == (["example 1.2.3"], [])
