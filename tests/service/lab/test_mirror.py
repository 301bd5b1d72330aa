"""Tests of the mirror with curl: it serves files as the publishers do."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import time
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.errors import ComponentError
from aks_flex_lab.mirror.control import MirrorClient
from aks_flex_lab.processes import CommandResult, run, spawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority, CertificatePair

    Curl = Callable[..., CommandResult]

pytestmark = pytest.mark.usefixtures("mirror")
KUBELET = "dl.k8s.io/v1/kubelet"


def headers(result: CommandResult) -> dict[str, str]:
    """Returns the headers of the last response of `curl -i` or `-I`, with names in lower case."""
    head = result.out.replace("\r\n", "\n").partition("\n\n")[0]
    return {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in head.splitlines()[1:]}


@pytest.mark.parametrize("plain", [False, True])
def test_mirror_serves_complete_file(curl: Curl, tree: Path, tmp_path: Path, plain: bool) -> None:
    answer = curl("-o", tmp_path / "got", "-w", "%{http_code} %{http_version}", KUBELET, plain=plain)
    assert answer.out == "200 1.1"
    assert (tmp_path / "got").read_bytes() == (tree / KUBELET).read_bytes()


def test_head_request_returns_headers_of_file(curl: Curl) -> None:
    told = headers(curl("-I", KUBELET))
    assert told["content-length"] == str(1 << 20)
    assert told["accept-ranges"] == "bytes"
    assert told["etag"]


def test_mirror_serves_empty_file_and_escaped_file_name(curl: Curl) -> None:
    assert curl("-w", "%{http_code}", "dl.k8s.io/v1/empty").out == "200"
    assert curl("github.com/runc/a%20b+c.tar.gz").out == "odd name"


def test_other_http_methods_are_refused(curl: Curl) -> None:
    assert curl("-o", os.devnull, "-w", "%{http_code}", "-d", "x", KUBELET).out == "405"


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "v1/../../../secret",
        "%2e%2e/%2e%2e/secret",
        "..%2f..%2fsecret",
        "link",
        "door/secret",
        "v1",
        "v1/",
        "",
        "v1//kubelet",
        "v1/%00kubelet",
    ],
)
def test_path_traversal_and_directory_listing_return_404(curl: Curl, path: str) -> None:
    answer = curl("--path-as-is", "-w", "%{http_code}", f"dl.k8s.io/{path}")
    assert answer.out.startswith("The mirror does not have dl.k8s.io/")
    assert answer.out.endswith("\n404")


def test_connection_is_reused_for_several_requests(curl: Curl, ports: tuple[int, int]) -> None:
    url = f"https://dl.k8s.io:{ports[0]}/v1"
    more = (f"{url}/nothing", f"{url}/kubelet.sha256")
    answer = curl("-o", os.devnull, "-o", os.devnull, "-o", os.devnull, "-w", "%{num_connects} ", *more, KUBELET)
    assert answer.out.split() == ["1", "0", "0"]


def test_malformed_and_aborted_requests_do_not_break_mirror(
    curl: Curl, authority: CertificateAuthority, ports: tuple[int, int]
) -> None:
    assert run("curl", "-sS", f"https://127.0.0.1:{ports[0]}/", check=False).code == 60  # curl does not trust our CA
    for words in (b"\x16\x03\x01garbage", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", ports[0])) as connection:
            connection.sendall(words)
    trust = ssl.create_default_context(cafile=str(authority.certificate))
    with (
        socket.create_connection(("127.0.0.1", ports[0])) as connection,
        trust.wrap_socket(connection, server_hostname="dl.k8s.io") as secure,
    ):
        secure.sendall(b"GET /v1/kubelet HTTP/1.1\r\nHost: dl.k8s.io\r\n\r\n")
        secure.recv(10)
    assert curl("github.com/runc/runc.amd64").out == "amd64"


def test_mirror_counts_requests_until_reset(curl: Curl, mirror: MirrorClient) -> None:
    curl("-I", KUBELET)
    curl("-o", os.devnull, KUBELET)
    curl("-o", os.devnull, "-r", "0-9", KUBELET)
    curl("-o", os.devnull, "dl.k8s.io/nothing")
    fetched = mirror.requests()
    assert (fetched[KUBELET].requests, fetched[KUBELET].bytes) == (3, (1 << 20) + 10)
    assert (fetched["dl.k8s.io/nothing"].requests, fetched["dl.k8s.io/nothing"].bytes) == (1, 0)
    mirror.reset()
    assert mirror.requests() == {}


def test_control_socket_is_accessible_to_owner_only(mirror: MirrorClient, curl: Curl) -> None:
    assert mirror.control.stat().st_mode & 0o777 == 0o600
    assert curl("-o", os.devnull, "-w", "%{http_code}", "dl.k8s.io/rules").out == "404"


def test_mirror_starts_over_stale_socket_and_removes_it_on_stop(
    tree: Path, certificate: CertificatePair, tmp_path: Path
) -> None:
    control = tmp_path / ("long" * 30) / "control.sock"
    argv = (sys.executable, "-m", "aks_flex_lab.mirror", "--root", tree, "--listen", "127.0.0.1:0")
    files = ("--cert", certificate.certificate, "--key", certificate.key, "--control", control)
    for sudden in (True, False):
        process = spawn((*argv, *files), log=tmp_path / "log")
        while not MirrorClient(control).is_running():
            assert process.alive, (tmp_path / "log").read_text()
            time.sleep(0.02)
        assert run(*argv, *files, check=False).err.startswith("error: mirror-already-running: Another mirror")
        process.stop(0 if sudden else 5)
    assert not control.exists()
    with pytest.raises(ComponentError, match="does not respond"):
        MirrorClient(control).rules()
