"""The publishers' own files: whether they can be reached at all, downloads that resume, checksums that must agree."""

from __future__ import annotations

import http.client
import re
import shutil
import tarfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Protocol

from aks_flex_node.lab.errors import ToolError
from aks_flex_node.lab.tools import pins
from aks_flex_node.lab.tools.shelves import file_hash

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from aks_flex_node.lab.tools.recipes import Checksum, ReleaseFile, Tool

DECIDE_SECONDS = 3.0
READ_SECONDS = 30.0
TRIES = 4
PARTIAL = 206
RANGE_REFUSED = 416
HASH_LINE = re.compile(r"(?P<hash>[0-9a-f]+)(?:\s+\*?(?:\S*/)?(?P<name>\S+))?")
DIGITS = {"sha256": 64, "sha512": 128}


@dataclass(frozen=True)
class Answer:
    """A file that has begun to come."""

    body: IO[bytes]
    start: int  # where in the file the body begins
    total: int  # the size of the whole file; 0 when the publisher does not say


class Web(Protocol):
    """The way to the publishers; a test brings its own."""

    def get(self, url: str, start: int, seconds: float) -> AbstractContextManager[Answer]:
        """Ask for `https://` + url from byte `start` on. Raises OSError."""


class Https:
    """The real web. Proxies are taken from the environment, as everywhere."""

    @contextmanager
    def get(self, url: str, start: int, seconds: float) -> Iterator[Answer]:
        request = urllib.request.Request(f"https://{url}")
        if start:
            request.add_header("Range", f"bytes={start}-")
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310 - https, as written above
                begins = start if answer.status == PARTIAL else 0
                yield Answer(answer, begins, begins + int(answer.headers.get("Content-Length") or 0))
        except http.client.HTTPException as error:
            raise OSError(f"the server broke off: {error!r}") from error


@dataclass
class Publishers:
    """Downloads release files; decides once for each host whether it can be reached."""

    web: Web = field(default_factory=Https)
    seconds: float = DECIDE_SECONDS
    pause: float = 0.5  # before another try, doubled each time
    pins: Mapping[str, str] = field(default_factory=lambda: pins.SHA256)
    verdicts: dict[str, bool] = field(default_factory=dict)
    doing: str = ""  # how far the present download is

    def reachable(self, files: tuple[ReleaseFile, ...]) -> bool:
        """Whether the files can be had. A checksum file must come back as one: no login page is taken for it."""
        if not files:
            return False
        for file in files:
            if file.host not in self.verdicts:
                self.verdicts[file.host] = self.answers(file)
        return all(self.verdicts[file.host] for file in files)

    def answers(self, file: ReleaseFile) -> bool:
        """Asks on a thread of its own, because looking up a name does not keep to a time limit."""
        answers: list[bool] = []

        def ask() -> None:
            try:
                published_hash(self.text(file.checksums[0].url, self.seconds), file, file.checksums[0])
                answers.append(True)
            except (OSError, ToolError, ValueError):
                answers.append(False)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(self.seconds)
        return answers == [True]

    def text(self, url: str, seconds: float = READ_SECONDS) -> str:
        with self.web.get(url, 0, seconds) as answer:
            return answer.body.read(1 << 20).decode(errors="replace")

    def fetch(self, tool: Tool, file: ReleaseFile, into: Path) -> Path:
        """The file, whole and checked against what its publisher says of it."""
        try:
            expected = published_hash(self.text(file.checksums[0].url), file, file.checksums[0])
            path = self.download(file, into / file.name)
        except OSError as error:
            raise ToolError(
                "tool-download-failed",
                f"{tool.title}: download of {file.url} failed: {error}.",
                "Run `aks-flex-lab tools install` again to go on where it stopped, or add `--source build`.",
            ) from error
        refuse_unless(tool, file, path, file.checksums[0].algorithm, expected)
        if file.url in self.pins:
            refuse_unless(tool, file, path, "sha256", self.pins[file.url])
        return path

    def download(self, file: ReleaseFile, path: Path) -> Path:
        """Under another name until it is whole; what came before the line broke is kept and not asked for again."""
        part = path.with_name(f"{path.name}.part")
        for attempt in range(1, TRIES + 1):
            try:
                self.go_on(file.url, part)
                return part.rename(path)
            except (OSError, EOFError) as error:
                if attempt == TRIES or is_final(error):
                    raise OSError(str(error)) from error
                if isinstance(error, urllib.error.HTTPError) and error.code == RANGE_REFUSED:
                    part.unlink(missing_ok=True)
                time.sleep(self.pause * 2**attempt)
        raise AssertionError

    def go_on(self, url: str, part: Path) -> None:
        start = part.stat().st_size if part.exists() else 0
        with self.web.get(url, start, READ_SECONDS) as answer, part.open("r+b" if start else "wb") as out:
            out.seek(answer.start)
            out.truncate()
            for block in iter(lambda: answer.body.read(1 << 20), b""):
                out.write(block)
                self.doing = f"downloading {url.rsplit('/', 1)[1]}, {out.tell() >> 20} of {answer.total >> 20} MB"
            if answer.total and out.tell() != answer.total:
                raise EOFError(f"{out.tell()} of {answer.total} bytes came")


def refuse_unless(tool: Tool, file: ReleaseFile, path: Path, algorithm: str, expected: str) -> None:
    actual = file_hash(path, algorithm)
    if actual != expected:
        path.unlink()
        raise ToolError(
            "tool-checksum-wrong",
            f"{tool.title}: {file.url} is refused: its {algorithm} is {actual}, it should be {expected}.",
            "Something on the way changes the file. Try another network, or `--source build`.",
        )


def is_final(error: Exception) -> bool:
    """Whether asking again is of no use."""
    return isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != RANGE_REFUSED


def published_hash(text: str, file: ReleaseFile, checksum: Checksum) -> str:
    """What a checksum file says of a file, whether it names it or holds the bare hash."""
    for line in text.splitlines():
        found = HASH_LINE.fullmatch(line.strip().lower())
        if found and len(found["hash"]) == DIGITS[checksum.algorithm] and found["name"] in (file.name.lower(), None):
            return found["hash"]
    raise ToolError(
        "checksum-file-unreadable",
        f"{checksum.url} says nothing about {file.name}.",
        "Try again later, or add `--source build`.",
    )


def unpack(tool: Tool, file: ReleaseFile, download: Path, into: Path) -> None:
    """Put the commands of a downloaded file, and the folders that belong to them, where the tool is made."""
    if file.inside is None:
        install_program(download, into / file.commands[0])
        return
    wanted = {str(PurePosixPath(file.inside, name)): name for name in file.commands}
    with tarfile.open(download) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            name = wanted.pop(str(path), None)
            if name is None and path.parts and path.parts[0] in file.folders and ".." not in path.parts:
                name = str(path)
            source = archive.extractfile(member) if name and member.isfile() else None
            if name and source:
                write_member(source, into / name, 0o755 if member.mode & 0o100 else 0o644)
    if wanted:
        raise ToolError("release-incomplete", f"{tool.title}: {file.url} lacks {', '.join(wanted)}.")


def write_member(source: IO[bytes], path: Path, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with source, path.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
    path.chmod(mode)


def install_program(download: Path, path: Path) -> None:
    download.rename(path)
    path.chmod(0o755)
