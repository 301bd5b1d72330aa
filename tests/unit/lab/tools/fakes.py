"""Fakes for the lab's download transport and Go builder, used by the tests of its tools."""

from __future__ import annotations

import io
import threading
import urllib.error
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.tools.go_builder import GoBuilder
from aks_flex_lab.tools.releases import DownloadStream, HttpsTransport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aks_flex_lab.tools.recipes import GoTool
    from aks_flex_lab.tools.tool_store import ToolDirectory


@dataclass
class FakeTransport(HttpsTransport):
    """Files by URL. Without files, it simulates a machine without a network."""

    files: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)  # bytes after which the next transfers of large files fail
    silent: bool = False  # connections hang until the end of the test
    asked: list[tuple[str, int]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def get(self, url: str, start: int, seconds: float) -> Iterator[DownloadStream]:  # noqa: ARG002
        self.asked.append((url, start))
        if self.silent:
            self.over.wait(60)
        if not self.files:
            raise urllib.error.URLError("Name or service not known")
        if url not in self.files:
            raise urllib.error.HTTPError(url, 404, "Not Found", Message(), None)
        content = self.files[url]
        body = content[start:]
        if self.cuts and len(body) > self.cuts[0]:
            body = body[: self.cuts.pop(0)]
        yield DownloadStream(io.BytesIO(body), start, len(content))


@dataclass
class FakeBuilder(GoBuilder):
    """Writes a short text for each command, and fails where configured."""

    cache: Path = Path()
    breaks_after: int | None = None  # number of commands
    error: BaseException = field(default_factory=KeyboardInterrupt)
    built: list[str] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)

    def prepare(self, tools: Sequence[GoTool], arch: str) -> None:  # noqa: ARG002
        self.prepared += [tool.title for tool in tools]

    def build(self, tool: GoTool, arch: str, into: Path, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("built by a fake\n")
        for count, command in enumerate(tool.commands):
            if count == self.breaks_after:
                raise self.error
            write_program(into / command.name, f"{command.name} {tool.version} for {arch}\n")
        for _, folder in tool.recipe.folders:
            (into / folder).mkdir(exist_ok=True)
            (into / folder / "settings.json").write_text("{}\n")
        self.built.append(tool.title)

    def progress_text(self) -> str:
        return "building"


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def read_program(program: Path, *words: str) -> str:
    """Returns the content of a fake program, in place of its output."""
    return program.read_text()


def store_fake_tool(shelf: ToolDirectory) -> None:
    """Stores a fake tool."""
    bench = shelf.build_directory("build")
    bench.mkdir(parents=True)
    FakeBuilder().build(shelf.tool, shelf.arch, bench, shelf.root / "fake.log")
    shelf.commit("build")
