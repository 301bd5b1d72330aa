"""Publishers and a mirror with small programs, a configuration that uses the mirror, and the two ways to download."""

from __future__ import annotations

import hashlib
import json
import sys
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_node.agent.cli import main
from aks_flex_node.agent.components.catalog import SEQUENCE
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.machine import Machine
from aks_flex_node.agent.paths import CURRENT_CONFIG
from aks_flex_node.agent.reconcile.program_stager import ProgramStager
from aks_flex_node.errors import ArtifactError
from tests.service.agent.artifacts.test_hostile_servers import Proxy
from tests.service.agent.http_fakes import archive
from tests.service.http_servers import Handler, listening
from tests.unit.agent.builders import JOIN
from tests.unit.agent.config.builders import load_settings, settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificatePair
    from aks_flex_node.agent.artifacts.model import Artifact
    from aks_flex_node.agent.reconcile.resources import ProgramTree
    from aks_flex_node.settings.models import NodeConfig

PUBLISHERS = ("github.com", "dl.k8s.io")
MACHINE = Machine(hostname="edge-1", arch="amd64")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def content_of(artifact: Artifact) -> bytes:
    """Returns a small file with everything that the component requires."""
    if artifact.is_plain:
        return f"{artifact.name} {artifact.version}".encode()
    return archive({f"{each.member}x" if each.is_prefix else each.member: b"program" for each in artifact.files})


def programs(config: NodeConfig, component: str) -> list[ProgramTree]:
    return [
        program
        for each in SEQUENCE
        for program in each.desired(config, MACHINE).programs
        if component in {"", program.component}
    ]


class MirrorHandler(Handler):
    """Serves files with their checksum files; special answers come first."""

    files: dict[str, bytes]
    answers: dict[str, Any]

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        path = urlsplit(self.path).path
        if not self.headers["Host"].startswith("localhost"):
            path = f"/{self.headers['Host']}{path}"  # a publisher
        if path in self.answers:
            self.answers[path](self)
        elif path in self.files:
            self.send(200, self.files[path])
        elif path.endswith(".sha256") and (content := self.files.get(path.removesuffix(".sha256"))) is not None:
            self.send(200, sha256(content).encode())
        else:
            self.send(404)

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


@dataclass
class Site:
    """A mirror, and a machine below `room` whose configuration uses it."""

    url: str
    room: Path
    files: dict[str, bytes]
    proxy: str  # through which the machine reaches the publishers
    publisher: str  # host and port of the publishers' server
    answers: dict[str, Any] = field(default_factory=dict)

    def settings(self, **changes: object) -> dict[str, object]:
        """Returns the settings of the machine; `__` in a name stands for a dot."""
        own: dict[str, object] = {
            "artifacts.baseURL": self.url,
            "artifacts.attempts": 1,
            "kubernetes.version": "1.36.3",  # not pinned in the agent
            "artifacts.checksumsFile": str(self.room / "checksums.txt"),
            "proxy.https": self.proxy,
            "proxy.noProxy": ["localhost", "127.0.0.1"],
            "paths.dataDir": str(self.room / "data"),
            "paths.installDir": str(self.room / "programs"),
        }
        given = {**JOIN, **own, **{name.replace("__", "."): value for name, value in changes.items()}}
        return {name: value for name, value in given.items() if value is not None}

    def config(self, **changes: object) -> NodeConfig:
        return load_settings(self.settings(**changes)).config

    def config_file(self, **changes: object) -> Path:
        path = self.room / "config.json"
        path.touch(mode=0o600)
        path.write_text(settings(self.settings(**changes)))
        return path

    def path(self, component: str, /, **changes: object) -> str:
        """Returns the path of the first file of a component on the mirror."""
        (artifact, *_) = programs(self.config(**changes), component)[0].artifacts
        return mirror_path(artifact.url)

    def publish(self, component: str = "", /, **changes: object) -> None:
        """Puts the files of a configuration on the mirror."""
        for program in programs(self.config(**changes), component):
            self.files |= {mirror_path(each.url): content_of(each) for each in program.artifacts}

    def stage(self, component: str = "runc", seconds: float = 60, /, **changes: object) -> None:
        """Downloads, verifies and unpacks a component, as a join does."""
        self._stage(self.config(**changes), component, seconds)

    def _stage(self, config: NodeConfig, component: str, seconds: float) -> None:
        (program, *_) = programs(config, component)
        with closing(ProgramStager(config)) as stager:
            stager.prepare([program])
            stager.finish(program, seconds)

    def stage_stored(self, **changes: object) -> None:
        """Downloads runc for a configuration that is in effect already, which is not validated again completely."""
        text = settings(self.settings(**changes))
        self._stage(load_text(text, CURRENT_CONFIG, {}, {}).config, "runc", 60)

    def refusal(self, component: str = "runc", seconds: float = 60, /, **changes: object) -> ArtifactError:
        with pytest.raises(ArtifactError) as caught:
            self.stage(component, seconds, **changes)
        return caught.value


def mirror_path(url: str) -> str:
    parts = urlsplit(url)
    return f"/{parts.netloc}{parts.path}"


class PublisherProxy(Proxy):
    """A proxy that finds all publishers on one server, and other hosts where they are."""

    publisher: str

    def do_CONNECT(self) -> None:  # noqa: N802 - http.server's name
        if not self.path.startswith("localhost:"):
            self.path = self.publisher
        super().do_CONNECT()


@contextmanager
def running_site(room: Path, pair: CertificatePair | None = None) -> Iterator[Site]:
    """Yields a mirror with all programs of the default configuration. The system trusts it, unless it has its own
    certificate, and the publishers.
    """
    files: dict[str, bytes] = {}
    answers: dict[str, Any] = {}
    handler = type("OwnMirror", (MirrorHandler,), {"files": files, "answers": answers})
    authority = CertificateAuthority(room / "system-pki")
    authority.ensure()
    own = authority.issue("publishers", "publishers", names=("localhost", *PUBLISHERS))
    with ExitStack() as stack:
        publisher = stack.enter_context(listening(handler, own)).removeprefix("https://")
        proxying = type("SiteProxy", (PublisherProxy,), {"seen": [], "publisher": publisher})
        proxy = stack.enter_context(listening(proxying)).replace("//", "//joe:s3cret@")
        url = stack.enter_context(listening(handler, pair or own))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SSL_CERT_FILE", str(authority.certificate))
        site = Site(url, room, files, proxy, publisher, answers)
        site.publish()
        yield site


def flex(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Runs `aks-flex-node` in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["aks-flex-node", *map(str, words)])
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def manifest(bundle: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bundle / "manifest.json").read_text())
    return found
