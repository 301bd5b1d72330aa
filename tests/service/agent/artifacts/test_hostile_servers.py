"""Tests of downloads through proxies and from misbehaving servers."""

from __future__ import annotations

import hashlib
import socket
import threading
from base64 import b64encode
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.artifacts.model import ArtifactFile
from tests.service.agent.http_fakes import KUBELET, refusal
from tests.service.http_servers import Handler, listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.service.agent.http_fakes import Publisher

LOGIN = "Basic " + b64encode(b"joe:s3cret").decode()


class Quiet(Handler):
    protocol_version = "HTTP/1.1"


class Proxy(Quiet):
    """A proxy that accepts CONNECT to any host with the right password."""

    seen: list[str]

    def do_CONNECT(self) -> None:  # noqa: N802 - http.server's name
        self.seen.append(self.path)
        self.close_connection = True
        if self.headers.get("Proxy-Authorization") != LOGIN:
            self.send_error(407)
            return
        host, _, port = self.path.partition(":")
        with socket.create_connection((host, int(port))) as there:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=pump, args=(there, self.connection))
            back.start()
            pump(self.connection, there)
            back.join()


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


@contextmanager
def serving(handler: type[Handler]) -> Iterator[str]:
    """Yields the address of a server on loopback."""
    with listening(handler) as url:
        yield url.removeprefix("http://")


@pytest.fixture
def proxied() -> Iterator[tuple[str, list[str]]]:
    """Yields the address of a proxy and the hosts that it was asked for."""
    seen: list[str] = []
    with serving(type("SeenProxy", (Proxy,), {"seen": seen})) as address:
        yield address, seen


def test_proxy_with_password_is_used(publisher: Publisher, proxied: tuple[str, list[str]]) -> None:
    address, seen = proxied
    store = publisher.store(https_proxy=f"http://joe:s3cret@{address}")
    assert store.wait(publisher.tree(publisher.kubelet(), publisher.tools()), 60)
    assert set(seen) == {publisher.base.removeprefix("https://")}


@pytest.mark.parametrize("direct", ["localhost", ".localhost", "*"])
def test_no_proxy_host_is_reached_directly(publisher: Publisher, proxied: tuple[str, list[str]], direct: str) -> None:
    address, seen = proxied
    store = publisher.store(https_proxy=f"http://{address}", no_proxy=("10.0.0.0/8", direct))
    assert store.wait(publisher.tree(publisher.kubelet()), 60)
    assert seen == []


def test_proxy_authentication_failure_is_reported_without_password(
    publisher: Publisher, proxied: tuple[str, list[str]]
) -> None:
    address, seen = proxied
    error = publisher.refuses(https_proxy=f"http://joe:wr0ng@{address}")
    assert (error.name, error.retryable) == ("artifact-unreachable", False)
    assert f"the proxy {address}" in error.message
    assert "407" in error.message
    assert "wr0ng" not in f"{error!r} {error} {error.__cause__!r}"
    assert len(seen) == 1


def habit(answer: Callable[[Quiet], None]) -> type[Quiet]:
    return type("Habit", (Quiet,), {"do_GET": answer})


def fetch(publisher: Publisher, address: str) -> str:
    """Downloads an artifact; returns the name of the error, or `ready`."""
    digest = f"sha256:{hashlib.sha256(KUBELET).hexdigest()}"
    artifact = publisher.kubelet(url=f"http://{address}/kubelet", digest=digest)
    tree, store = publisher.tree(artifact), publisher.store()
    store.prepare([tree])
    try:
        store.wait(tree, 60)
    except Exception as error:
        return getattr(error, "name", repr(error))
    return "ready" if (tree.staging / "bin/kubelet").read_bytes() == KUBELET else "wrong"


def fetch_from(publisher: Publisher, answer: Callable[[Quiet], None]) -> str:
    """Downloads an artifact from a server with this behavior."""
    with serving(habit(answer)) as address:
        return fetch(publisher, address)


def send(call: Quiet, status: int, headers: dict[str, str], content: bytes = b"") -> None:
    call.send_response(status)
    for name, value in headers.items():
        call.send_header(name, value)
    call.end_headers()
    call.wfile.write(content)


SIZE = {"Content-Length": str(len(KUBELET))}
HALF = KUBELET[:500_000]
WRONG_PART = {"Content-Range": f"bytes 7-{len(KUBELET) - 1}/{len(KUBELET)}"}


@pytest.mark.parametrize(
    ("answers", "conditions"),
    [
        ([(200, {**SIZE, "ETag": '"1"'}, HALF), (200, {**SIZE, "ETag": '"1"'}, KUBELET)], ["", '"1"']),
        ([(200, SIZE, HALF), (206, WRONG_PART, KUBELET[7:]), (200, SIZE, KUBELET)], ["", "", ""]),
        ([(200, {**SIZE, "ETag": '"1"'}, b"x" * 500_000), (200, {**SIZE, "ETag": '"2"'}, KUBELET)], ["", '"1"']),
    ],
    ids=["ignores the range", "wrong offset", "changed file"],
)
def test_download_restarts_when_its_server_cannot_resume_it(
    publisher: Publisher, answers: list[tuple[int, dict[str, str], bytes]], conditions: list[str]
) -> None:
    asked: list[tuple[str, str]] = []

    def answer(call: Quiet) -> None:
        call.close_connection = True
        asked.append((call.headers.get("Range", "")[:6], call.headers.get("If-Range", "")))
        send(call, *answers[len(asked) - 1])

    assert fetch_from(publisher, answer) == "ready"
    assert asked == list(zip(("", "bytes=", ""), conditions, strict=False))


def test_chunked_response_without_length_is_read_completely(publisher: Publisher) -> None:
    def answer(call: Quiet) -> None:
        half = len(KUBELET) // 2
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (KUBELET[:half], KUBELET[half:], b""))
        send(call, 200, {"Transfer-Encoding": "chunked"}, chunks)

    assert fetch_from(publisher, answer) == "ready"


def test_response_with_excessive_length_is_refused(publisher: Publisher) -> None:
    error = fetch_from(publisher, lambda call: send(call, 200, {"Content-Length": str(1 << 40)}))
    assert error == "artifact-too-large"


def test_oversized_checksum_file_is_refused(publisher: Publisher) -> None:
    with serving(habit(lambda call: send(call, 200, {"Content-Length": str(4 << 20)}, b"a" * (4 << 20)))) as address:
        sums = (f"http://{address}/sums",)
        error = publisher.refuses(publisher.kubelet(checksums=sums))
    assert error.name == "artifact-too-large"


def test_redirect_works_and_redirect_loop_is_refused(publisher: Publisher) -> None:
    def answer(call: Quiet) -> None:
        if call.path == "/end":
            send(call, 200, {"Content-Length": str(len(KUBELET))}, KUBELET)
        else:
            target = call.path + "x" if loop else "/end"
            send(call, 302, {"Location": target, "Content-Length": "0"})

    with serving(habit(answer)) as address:
        loop = True
        assert fetch(publisher, address) == "redirect-refused"
        loop = False
        assert fetch(publisher, address) == "ready"


def test_redirect_from_http_to_https_is_accepted(publisher: Publisher) -> None:
    target = {"Location": publisher.url("kubelet"), "Content-Length": "0"}
    assert fetch_from(publisher, lambda call: send(call, 301, target)) == "ready"


def test_mirror_password_is_sent_and_not_shown(publisher: Publisher) -> None:
    def answer(call: Quiet) -> None:
        right = call.headers.get("Authorization") == LOGIN
        send(call, 404 if right else 401, {"Content-Length": "0"})

    with serving(habit(answer)) as address:
        store = publisher.store(base_url=f"http://joe:s3cret@{address}/mirror")
        tree = publisher.tree(publisher.kubelet(files=(ArtifactFile("", "bin/kubelet"),), digest="0" * 64))
        error = refusal(store, tree)
    assert error.name == "artifact-not-found"
    assert f"http://{address}/mirror/localhost:" in error.message
    assert "s3cret" not in str(error)
