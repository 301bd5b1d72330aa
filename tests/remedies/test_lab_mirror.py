"""The remedies of errors of the lab's mirror and images are followed, with a running mirror and registry API."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import shutil
import sys
import threading
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.images.builder import ImagePrograms, lab_images
from aks_flex_lab.images.registry import push_images
from aks_flex_lab.layout import LabLayout
from aks_flex_lab.mirror.control import MirrorClient, UnixConnection, listen_for_control
from aks_flex_lab.mirror.fault_rules import FaultRuleTable
from aks_flex_lab.mirror.server import MirrorState
from aks_flex_lab.pki import CertificateAuthority
from aks_flex_lab.processes import run, spawn
from aks_flex_lab.tools import catalog
from aks_flex_lab.tools.artifacts import artifact_tree, python_gzip
from aks_flex_lab.tools.recipes import GoTool
from aks_flex_lab.tools.toolbox import Toolbox
from tests.remedies.catalogue import advice, command, remedies
from tests.remedies.lab_harness import LabPrompt, failure
from tests.unit.lab.tools.fakes import store_fake_tool
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

BUSYBOX = Path("/bin/busybox")


@pytest.fixture
def prompt(tmp_path: Path) -> LabPrompt:
    """Returns a command prompt for a lab without processes."""
    return LabPrompt(LabLayout("test", tmp_path / "labs", tmp_path / "cache"))


@contextmanager
def serving(prompt: LabPrompt) -> Iterator[MirrorClient]:
    """Runs the control socket of a mirror at its path in the lab."""
    path = prompt.layout.components / "mirror" / "control.sock"
    with listen_for_control(path, MirrorState(prompt.layout.cache, FaultRuleTable())) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield MirrorClient(path)
        server.shutdown()


@pytest.fixture
def mirror(prompt: LabPrompt) -> Iterator[MirrorClient]:
    with serving(prompt) as client:
        yield client


@pytest.mark.parametrize(
    ("wrong", "name", "right"),
    [
        pytest.param("slow * --rate 0", "mirror-fault-invalid", "slow * --rate 1"),
        pytest.param("stall * --hold 0", "mirror-fault-invalid", "stall * --hold 3600"),
        pytest.param("missing ''", "mirror-rule-invalid", ""),
        pytest.param("slow * --rate fast", "size-invalid", "slow * --rate 200k"),
        pytest.param("cut * --after half", "size-invalid", "cut * --after 50%"),
        pytest.param("cut * --after 150%", "mirror-share-too-large", "cut * --after 100%"),
    ],
)
@pytest.mark.remedy("mirror-fault-invalid", "mirror-rule-invalid", "size-invalid", "mirror-share-too-large")
def test_corrected_fault_rule_is_added(
    prompt: LabPrompt, mirror: MirrorClient, wrong: str, name: str, right: str
) -> None:
    assert prompt.error("mirror", *shlex.split(wrong)) == name
    assert mirror.rules() == ()

    words = {
        "mirror-fault-invalid": "Correct the value that the message names.",
        "mirror-rule-invalid": "Pass a pattern and a valid number",
        "size-invalid": "(`200k`, `1.5M`). For `--after`, a percentage (`50%`) is also valid.",
        "mirror-share-too-large": "Use `0%` to `100%`",
    }
    advice(name, words[name])
    if name == "mirror-rule-invalid":
        prompt.run(*command(name, "aks-flex-lab mirror missing")[1:])
    else:
        prompt.run("mirror", *shlex.split(right))

    assert len(mirror.rules()) == 1


@pytest.mark.remedy("mirror-fault-not-found")
def test_listed_fault_rule_is_removed(prompt: LabPrompt, mirror: MirrorClient) -> None:
    prompt.run("mirror", "corrupt", "*")
    assert prompt.error("mirror", "remove", "99") == "mirror-fault-not-found"

    advice("mirror-fault-not-found", "Use an ID from the first column")
    first_column = prompt.run("mirror", "list").splitlines()[1].split()[0]
    prompt.run("mirror", "remove", first_column)
    assert mirror.rules() == ()
    prompt.run("mirror", "corrupt", "*")
    prompt.run(*command("mirror-fault-not-found", "aks-flex-lab mirror reset")[1:])

    assert mirror.rules() == ()


@pytest.mark.remedy("mirror-fault-unknown", "mirror-request-invalid", "mirror-request-unknown")
@pytest.mark.parametrize("name", ["mirror-fault-unknown", "mirror-request-invalid", "mirror-request-unknown"])
def test_corrected_call_of_the_control_socket_succeeds(mirror: MirrorClient, name: str) -> None:
    [example] = [text for text in _examples("mirror-request-invalid") if text.startswith("{")]
    wrong = {
        "mirror-fault-unknown": ("POST", "/rules", example.replace("corrupt", "upset")),
        "mirror-request-invalid": ("POST", "/rules", "[]"),
        "mirror-request-unknown": ("DELETE", "/reset", "{}"),
    }
    method, path, body = wrong[name]
    assert _raw_call(mirror, method, path, body)["name"] == name

    if name == "mirror-fault-unknown":
        advice(name, "Correct the field `kind`.")
    elif name == "mirror-request-invalid":
        advice(name, "Send an object, for example")
    else:
        advice(name, "Correct the call, or use the class `MirrorClient` in `aks_flex_lab.mirror.control`.")
        assert mirror.rules() == ()
    answer = _raw_call(mirror, "POST", "/rules", example)

    assert [rule.id for rule in mirror.rules()] == [answer["id"]]


def _examples(name: str) -> list[str]:
    return re.findall(r"`([^`]+)`", remedies()[name])


def _raw_call(mirror: MirrorClient, method: str, path: str, body: str) -> Any:
    connection = UnixConnection(mirror.control, 5)
    try:
        connection.request(method, path, body)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


@pytest.mark.remedy("image-source-not-found")
def test_images_are_built_after_their_programs_are_installed(tmp_path: Path) -> None:
    pause = tmp_path / "pause"
    assert failure(lab_images, {"amd64": ImagePrograms(pause, BUSYBOX)}).name == "image-source-not-found"
    missing = tmp_path / "busybox"
    pause.write_bytes(BUSYBOX.read_bytes())
    assert failure(lab_images, {"amd64": ImagePrograms(pause, missing)}).name == "image-source-not-found"

    assert command("image-source-not-found", "apt-get install")[-1] == "busybox-static"
    assert command("image-source-not-found", "aks-flex-lab tools install")[-1] == "pause"
    missing.write_bytes(BUSYBOX.read_bytes())
    missing.chmod(0o755)

    assert lab_images({"amd64": ImagePrograms(pause, missing)})


class RegistryHandler(BaseHTTPRequestHandler):
    """A registry that stores nothing, or that fails as the test chooses."""

    protocol_version = "HTTP/1.1"

    def __init__(self, mood: list[str], *words: Any) -> None:
        self.mood = mood
        super().__init__(*words)

    def do_HEAD(self) -> None:
        self._reply(404)

    def do_POST(self) -> None:
        if self.mood[0] == "closes":
            self.close_connection = True
            self.wfile.write(b"no HTTP\r\n\r\n")
            return
        self._reply(500 if self.mood[0] == "full" else 202)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._reply(201)

    def _reply(self, status: int) -> None:
        text = b'{"errors": [{"detail": "no space left on device"}]}' if status == 500 else b""
        self.send_response(status)
        self.send_header("Location", "/v2/upload/1")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("mood", "name", "words"),
    [
        ("closes", "registry-not-responding", "Run `aks-flex-lab up` again."),
        ("full", "registry-request-rejected", "Free disk space, then run `aks-flex-lab up`."),
    ],
)
@pytest.mark.remedy("registry-not-responding", "registry-request-rejected")
def test_images_are_pushed_when_the_registry_works_again(mood: str, name: str, words: str) -> None:
    """`up` pushes the images, and continues with those that the registry does not have."""
    moods = [mood]
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(RegistryHandler, moods))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    images = lab_images({"amd64": ImagePrograms(BUSYBOX, BUSYBOX)})

    def push() -> int:
        return push_images(lambda: http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20), images)

    try:
        assert failure(push).name == name
        advice(name, words)
        moods[0] = "works"
        assert push() == len(images)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.remedy("mirror-directory-missing")
def test_mirror_starts_after_the_artifacts_are_packed(tmp_path: Path) -> None:
    """`up` packs the artifacts with `artifact_tree`, and starts the mirror again."""
    box = Toolbox(tmp_path / "cache", "amd64", tuple(tool for tool in catalog.TOOLS if tool.name == "runc"))
    for tool in box.tools:
        assert isinstance(tool, GoTool)
        store_fake_tool(box.tool_directory(tool))
    tree = artifact_tree(box, compress=python_gzip)
    shutil.rmtree(tree)  # the cache was deleted in the meantime
    said = run(sys.executable, *mirror_arguments(tmp_path, tree), check=False)
    assert "error: mirror-directory-missing: " in said.err

    assert command("mirror-directory-missing", "aks-flex-lab up") == ["aks-flex-lab", "up"]
    process = spawn(
        [sys.executable, *mirror_arguments(tmp_path, artifact_tree(box, compress=python_gzip))],
        log=tmp_path / "log",
    )
    try:
        until(MirrorClient(tmp_path / "control.sock").is_running, "the mirror serves", 60)
    finally:
        process.stop()


def mirror_arguments(room: Path, root: Path) -> list[str]:
    authority = CertificateAuthority(room / "pki")
    authority.ensure()
    pair = authority.issue("mirror", "mirror", names=["mirror.lab"])
    files = {"root": root, "cert": pair.certificate, "key": pair.key, "control": room / "control.sock"}
    options = [f"--{key}={value}" for key, value in files.items()]
    return ["-m", "aks_flex_lab.mirror", "--listen=127.0.0.1:0", *options]
