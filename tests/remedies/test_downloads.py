"""Follows the remedies of errors of downloads."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_node.errors import ArtifactError
from tests.remedies.artifact_harness import MirrorHandler, PublisherProxy, flex, running_site, sha256
from tests.remedies.catalogue import advice, command
from tests.service.agent.artifacts.test_hostile_servers import LOGIN
from tests.service.http_servers import listening
from tests.service.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.remedies.artifact_harness import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with running_site(tmp_path) as site:
        yield site


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    authority = CertificateAuthority(tmp_path_factory.mktemp("pki"))
    authority.ensure()
    return authority


@pytest.fixture
def private_site(authority: CertificateAuthority, tmp_path: Path) -> Iterator[Site]:
    """Yields a mirror whose certificate is from a private CA."""
    with running_site(tmp_path, authority.issue("localhost", "localhost", names=("localhost",))) as site:
        yield site


@pytest.mark.remedy("artifact-unreachable")
@pytest.mark.parametrize("way", ["artifacts.baseURL", "artifacts.bundle"])
def test_unreachable_publisher_is_replaced(site: Site, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: dict[str, object] = {"runc__url": f"https://127.0.0.1:{free_port()}/v%s/runc.%s"}
    site.publish("runc", **closed)
    assert site.refusal(artifacts__baseURL=None, **closed).name == "artifact-unreachable"
    advice("artifact-unreachable", f"(`{way}`)")
    bundle = site.room / "bundle.tar"
    assert flex(monkeypatch, "artifacts", "bundle", bundle, "--config", site.config_file(**closed)) == 0
    ways = {"artifacts.baseURL": site.url, "artifacts.bundle": str(bundle)}
    site.stage(**{"artifacts__baseURL": None, way.replace(".", "__"): ways[way]}, **closed)


@pytest.mark.remedy("artifact-unreachable")
def test_private_ca_of_the_mirror_is_trusted(private_site: Site, authority: CertificateAuthority) -> None:
    error = private_site.refusal()
    assert error.name == "artifact-unreachable"
    assert "not trusted" in error.message
    advice("artifact-unreachable", "For an untrusted certificate, set `artifacts.caFile`")
    private_site.stage(artifacts__caFile=str(authority.certificate))


class KnowingProxy(PublisherProxy):
    """A proxy that knows where the mirror is."""

    mirror: str

    def do_CONNECT(self) -> None:  # noqa: N802 - http.server's name
        if self.path.startswith("localhost:"):
            self.path = self.mirror
        super().do_CONNECT()


@pytest.mark.remedy("artifact-unreachable")
def test_publisher_is_reached_through_the_proxy(private_site: Site, authority: CertificateAuthority) -> None:
    hidden: dict[str, object] = {
        "artifacts__baseURL": f"https://localhost:{free_port()}",
        "artifacts__caFile": str(authority.certificate),
        "proxy__noProxy": None,
    }
    assert private_site.refusal(**hidden).name == "artifact-unreachable"
    advice("artifact-unreachable", "Behind a firewall, set `proxy.https`")
    mirror, publisher = private_site.url.removeprefix("https://"), private_site.publisher
    own = {"seen": [], "mirror": mirror, "publisher": publisher}
    with listening(type("OwnProxy", (KnowingProxy,), own)) as proxy:
        private_site.stage(proxy__https=proxy.replace("//", "//joe:s3cret@"), **hidden)


@pytest.mark.remedy("artifact-not-found")
def test_version_that_exists_is_found(site: Site) -> None:
    assert site.refusal(runc__version="9.9.9").name == "artifact-not-found"
    advice("artifact-not-found", "Correct the version")
    site.stage()


@pytest.mark.remedy("artifact-not-found")
def test_file_is_put_on_the_mirror(site: Site) -> None:
    path = site.path("runc")
    content = site.files.pop(path)
    error = site.refusal()
    assert error.name == "artifact-not-found"
    assert f"{site.url}{path}" in error.message
    advice("artifact-not-found", "put the file on the mirror at `<baseURL>/<host>/<path>`")
    site.files[path] = content
    site.stage()


@pytest.mark.remedy("artifact-request-rejected")
def test_login_in_the_url_of_the_mirror_is_accepted(site: Site) -> None:
    def locked(call: MirrorHandler) -> None:
        allowed = call.headers.get("Authorization") == LOGIN
        call.send(200, site.files[path]) if allowed else call.send(401)

    path = site.path("runc")
    site.answers[path] = locked
    assert site.refusal().name == "artifact-request-rejected"
    advice("artifact-request-rejected", "`https://user:password@mirror/…`")
    site.stage(artifacts__baseURL=site.url.replace("//", "//joe:s3cret@"))


@pytest.mark.remedy("artifact-checksum-mismatch")
@pytest.mark.parametrize(
    "wrong", ["a proxy or a mirror changes", "correct `sha256`", "the line of the checksums file"]
)
def test_checksum_is_right_after_the_repair(site: Site, wrong: str) -> None:
    path, pinned = site.path("runc"), {}
    content = site.files[path]
    if wrong == "correct `sha256`":
        pinned = {"runc__sha256": {path.rpartition("/")[2]: "0" * 64}}
    elif "checksums file" in wrong:
        (site.room / "checksums.txt").write_text(f"{'0' * 64}  https:/{path}\n")
    else:
        site.answers[path] = lambda call: call.send(200, content[:-1] + b"?")
        site.answers[f"{path}.sha256"] = lambda call: call.send(200, sha256(content).encode())
    error = site.refusal(**pinned)
    assert error.name == "artifact-checksum-mismatch"
    advice("artifact-checksum-mismatch", wrong)
    site.answers.clear()
    (site.room / "checksums.txt").write_text(f"{sha256(content)}  https:/{path}\n")
    site.stage(**{name: {path.rpartition("/")[2]: sha256(content)} for name in pinned})


@pytest.mark.remedy("artifact-checksum-missing")
@pytest.mark.parametrize("by", ["configuration", "checksums file"])
def test_file_without_checksum_gets_one(site: Site, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, closed = site.path("containerd"), {"proxy__https": f"http://127.0.0.1:{free_port()}"}
    assert site.refusal("containerd", **closed).name == "artifact-checksum-missing"
    if by == "checksums file":
        words = command("artifact-checksum-missing", "aks-flex-node artifacts pins", FILE=str(site.config_file()))
        with redirect_stdout(StringIO()) as printed:
            assert flex(monkeypatch, *words[1:]) == 0
        advice("artifact-checksum-missing", "to `/etc/aks-flex-node/checksums.txt` on this machine")
        (site.room / "checksums.txt").write_text(printed.getvalue())
        site.stage("containerd", **closed)
        return
    advice("artifact-checksum-missing", "`containerd: {sha256: {FILE: HASH}}`")
    advice("artifact-checksum-missing", "(`sha256sum FILE`)")
    trusted = site.room / "FILE"
    trusted.write_bytes(site.files[path])
    output = subprocess.run(["sha256sum", trusted], capture_output=True, text=True, check=True).stdout
    hashes = {path.rpartition("/")[2]: output.split()[0]}
    site.stage("containerd", containerd__sha256=hashes, **closed)


def test_unencrypted_mirror_is_not_used(site: Site) -> None:
    """A stored configuration names a mirror without TLS."""
    with pytest.raises(ArtifactError) as refused:
        site.stage_stored(artifacts__baseURL=site.url.replace("https:", "http:"))
    assert refused.value.name == "artifact-url-not-encrypted"
    site.stage_stored(artifacts__baseURL=site.url)


@pytest.mark.parametrize(("content", "mode"), [(f"{'0' * 64}\n", 0o644), ("", 0o666)])
def test_checksums_file_that_is_damaged_or_writable_is_refused(site: Site, content: str, mode: int) -> None:
    file = site.room / "checksums.txt"
    file.write_text(content)
    file.chmod(mode)
    assert site.refusal().name == "checksums-file-invalid"
    file.unlink()
    site.stage()


@pytest.mark.remedy("artifact-timeout")
def test_slow_component_is_complete_with_the_next_command(site: Site) -> None:
    path, arrived = site.path("runc"), threading.Event()

    def slow(call: MirrorHandler) -> None:
        arrived.wait(60)
        call.send(200, site.files[path])

    site.answers[path] = slow
    assert site.refusal("runc", 0.05).name == "artifact-timeout"
    arrived.set()
    advice("artifact-timeout", "Run the same command again; downloaded data is kept.")
    site.stage()


def test_cache_with_a_damaged_record_is_filled_again(site: Site) -> None:
    """The record of a cached file is valid JSON, but not what the agent writes."""
    site.stage()
    cache = site.room / "data/artifacts"
    (record,) = [path for path in cache.glob("*/.*") if path.is_file()]
    record.write_text('{"publishedAs": 5}')
    assert site.refusal("cni").name == "artifact-response-invalid"
    shutil.rmtree(cache)
    site.stage("cni")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount file systems")
def test_read_only_file_system_is_mounted_read_write(site: Site) -> None:
    place = site.room / "programs"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=16m", "tmpfs", place], check=True)
    try:
        assert site.refusal().name == "artifact-store-not-writable"
        subprocess.run(["mount", "-o", "remount,rw", str(place)], check=True)
        site.stage()
    finally:
        subprocess.run(["umount", place], check=True)
