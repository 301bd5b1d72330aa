"""Downloads release files of publishers: reachability, resumed downloads, published and pinned checksums."""

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
from typing import IO, TYPE_CHECKING

from aks_flex_lab.errors import ToolError
from aks_flex_lab.tools.tool_store import file_hash

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aks_flex_lab.tools.recipes import Checksum, GoTool, ReleaseFile


KUBERNETES_FILES = "dl.k8s.io/v1.34.4/bin/linux"
CNI_FILES = "github.com/containernetworking/plugins/releases/download/v1.7.1/cni-plugins-linux"

PINNED_SHA256 = {
    f"{KUBERNETES_FILES}/amd64/kubelet": "03b8fea715a7ef82eeaf518dee34c72670c57cc7bc40dc1320c04fbf4f15172f",
    f"{KUBERNETES_FILES}/arm64/kubelet": "c78845473c434ee85a2444eeab87f8b20f524e3ab6854a078f79468f44aad8f5",
    f"{KUBERNETES_FILES}/amd64/kubectl": "d50c359d95e0841eaad08ddc27c7be37cba8fdccfba5c8e2ded65e121ff112db",
    f"{KUBERNETES_FILES}/arm64/kubectl": "5b982c0644ab1e27780246b9085a5886651b4a7ed86243acbb2bacc1bea01dda",
    f"{KUBERNETES_FILES}/amd64/kubeadm": "b967f1fa0e36621c402d38bb560eb4a943954d5cf5a00e5150842f6f5da73455",
    f"{KUBERNETES_FILES}/arm64/kubeadm": "d8028b7e8c8d6c9b3fc3da6bc88d4d0cfb33df1b4b026a7d6e8c35d1471c9f6e",
    f"{CNI_FILES}-amd64-v1.7.1.tgz": "1a28a0506bfe5bcdc981caf1a49eeab7e72da8321f1119b7be85f22621013098",
    f"{CNI_FILES}-arm64-v1.7.1.tgz": "119fcb508d1ac2149e49a550752f9cd64d023a1d70e189b59c476e4d2bf7c497",
}


REACHABILITY_SECONDS = 3.0
READ_SECONDS = 30.0
ATTEMPTS = 4
PARTIAL = 206
RANGE_REFUSED = 416
HASH_LINE = re.compile(r"(?P<hash>[0-9a-f]+)(?:\s+\*?(?:\S*/)?(?P<name>\S+))?")
DIGITS = {"sha256": 64, "sha512": 128}


@dataclass(frozen=True)
class DownloadStream:
    """A download in progress."""

    body: IO[bytes]
    start: int  # offset of the body in the file
    total: int  # size of the whole file; 0 when the server does not report it


class HttpsTransport:
    """Downloads over HTTPS, with the proxies of the environment."""

    @contextmanager
    def get(self, url: str, start: int, seconds: float) -> Iterator[DownloadStream]:
        """Requests `https://` + url from byte `start`. Raises OSError."""
        request = urllib.request.Request(f"https://{url}")
        if start:
            request.add_header("Range", f"bytes={start}-")
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310 - https, as written above
                begins = start if answer.status == PARTIAL else 0
                yield DownloadStream(answer, begins, begins + int(answer.headers.get("Content-Length") or 0))
        except http.client.HTTPException as error:
            raise OSError(f"the server closed the connection: {error!r}") from error


@dataclass
class ReleaseDownloader:
    """Downloads release files; decides once for each host whether it can be reached."""

    transport: HttpsTransport = field(default_factory=HttpsTransport)
    seconds: float = REACHABILITY_SECONDS
    pause: float = 0.5  # delay before a retry, doubled each time
    pins: Mapping[str, str] = field(default_factory=lambda: PINNED_SHA256)
    reachable_hosts: dict[str, bool] = field(default_factory=dict)
    progress_text: str = ""  # progress of the current download

    def reachable(self, files: tuple[ReleaseFile, ...]) -> bool:
        """Returns whether the release is reachable: its checksum file must be valid, not for example a login page."""
        if not files:
            return False
        for file in files:
            if file.host not in self.reachable_hosts:
                self.reachable_hosts[file.host] = self.is_host_reachable(file)
        return all(self.reachable_hosts[file.host] for file in files)

    def is_host_reachable(self, file: ReleaseFile) -> bool:
        """Checks a host in a separate thread, because name resolution has no time limit."""
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
        with self.transport.get(url, 0, seconds) as answer:
            return answer.body.read(1 << 20).decode(errors="replace")

    def fetch(self, tool: GoTool, file: ReleaseFile, into: Path) -> Path:
        """Downloads a file and verifies it with its published and pinned checksums."""
        try:
            expected = published_hash(self.text(file.checksums[0].url), file, file.checksums[0])
            path = self.download(file, into / file.name)
        except OSError as error:
            raise ToolError(
                "tool-download-failed",
                f"{tool.title}: download of {file.url} failed: {error}.",
                "Run `aks-flex-lab tools install` again to resume, or add `--source build`.",
            ) from error
        require_hash(tool, file, path, file.checksums[0].algorithm, expected)
        if file.url in self.pins:
            require_hash(tool, file, path, "sha256", self.pins[file.url])
        return path

    def download(self, file: ReleaseFile, path: Path) -> Path:
        """Downloads a file to a temporary name, and resumes an interrupted download."""
        part = path.with_name(f"{path.name}.part")
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self.resume(file.url, part)
                return part.rename(path)
            except (OSError, EOFError) as error:
                if attempt == ATTEMPTS or (
                    isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != RANGE_REFUSED
                ):
                    raise OSError(str(error)) from error
                if isinstance(error, urllib.error.HTTPError) and error.code == RANGE_REFUSED:
                    part.unlink(missing_ok=True)
                time.sleep(self.pause * 2**attempt)
        raise AssertionError

    def resume(self, url: str, part: Path) -> None:
        start = part.stat().st_size if part.exists() else 0
        with self.transport.get(url, start, READ_SECONDS) as answer, part.open("r+b" if start else "wb") as out:
            out.seek(answer.start)
            out.truncate()
            for block in iter(lambda: answer.body.read(1 << 20), b""):
                out.write(block)
                self.progress_text = (
                    f"downloading {url.rsplit('/', 1)[1]}, {out.tell() >> 20} of {answer.total >> 20} MB"
                )
            if answer.total and out.tell() != answer.total:
                raise EOFError(f"{out.tell()} of {answer.total} bytes received")


def require_hash(tool: GoTool, file: ReleaseFile, path: Path, algorithm: str, expected: str) -> None:
    actual = file_hash(path, algorithm)
    if actual != expected:
        path.unlink()
        raise ToolError(
            "tool-checksum-mismatch",
            f"{tool.title}: {file.url} was rejected: its {algorithm} is {actual}, expected {expected}.",
            "A proxy may change the file. Use another network, or `--source build`.",
        )


def published_hash(text: str, file: ReleaseFile, checksum: Checksum) -> str:
    """Returns the hash of a file from a checksum file, which lists names or contains only the hash."""
    for line in text.splitlines():
        found = HASH_LINE.fullmatch(line.strip().lower())
        if found and len(found["hash"]) == DIGITS[checksum.algorithm] and found["name"] in (file.name.lower(), None):
            return found["hash"]
    raise ToolError(
        "checksum-file-unreadable",
        f"{checksum.url} does not contain {file.name}.",
        "Retry later, or add `--source build`.",
    )


def unpack(tool: GoTool, file: ReleaseFile, download: Path, into: Path) -> None:
    """Copies the commands and additional directories of a downloaded file into the directory of the tool."""
    if file.inside is None:
        install_program(download, into / file.commands[0])
        return
    names = {str(PurePosixPath(file.inside, name)): name for name in file.commands}
    with tarfile.open(download) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            name = names.pop(str(path), None)
            if name is None and path.parts and path.parts[0] in file.folders and ".." not in path.parts:
                name = str(path)
            source = archive.extractfile(member) if name and member.isfile() else None
            if name and source:
                write_member(source, into / name, 0o755 if member.mode & 0o100 else 0o644)
    if names:
        raise ToolError(
            "release-incomplete",
            f"{tool.title}: {file.url} lacks {', '.join(names)}.",
            "Run `aks-flex-lab tools install NAME@VERSION --source build`.",
        )


def write_member(source: IO[bytes], path: Path, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with source, path.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
    path.chmod(mode)


def install_program(download: Path, path: Path) -> None:
    download.rename(path)
    path.chmod(0o755)
