"""Follows the remedies of errors of archives and offline bundles."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.remedies.artifact_harness import flex, manifest, running_site, sha256
from tests.remedies.catalogue import advice, command
from tests.service.agent.http_fakes import archive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.remedies.artifact_harness import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with running_site(tmp_path) as site:
        yield site


@pytest.mark.remedy("archive-corrupt")
@pytest.mark.parametrize("way", ["version", "hash"])
def test_damaged_archive_is_replaced(site: Site, way: str) -> None:
    path = site.path("containerd")
    whole, name = site.files[path], path.rpartition("/")[2]
    site.files[path] = damaged = whole[: len(whole) // 2]
    pinned = {"containerd__sha256": {name: sha256(damaged)}} if way == "hash" else {}
    assert site.refusal("containerd", **pinned).name == "archive-corrupt"
    if way == "version":
        advice("archive-corrupt", "Use another version of the component")
        site.publish("containerd", containerd__version="2.0.0")
        site.stage("containerd", containerd__version="2.0.0")
        return
    site.files[path] = whole
    advice("archive-corrupt", "replace it with the hash of the correct file")
    site.stage("containerd", containerd__sha256={name: sha256(whole)})


def test_corrected_archive_at_the_same_url_is_used(site: Site) -> None:
    path = site.path("containerd")
    whole = site.files[path]
    site.files[path] = whole[: len(whole) // 2]
    assert site.refusal("containerd").name == "archive-corrupt"
    site.files[path] = whole
    site.stage("containerd")


@pytest.mark.remedy("archive-unsafe")
def test_unsafe_archive_is_not_used(site: Site, tmp_path: Path) -> None:
    site.files[site.path("cni")] = archive({"loopback": b"", "../../etc/cron.d/evil": b""})
    assert site.refusal("cni").name == "archive-unsafe"
    advice("archive-unsafe", "Use another version of the component or another mirror.")
    with running_site(tmp_path / "other") as other:
        site.stage("cni", artifacts__baseURL=other.url, proxy__https=other.proxy)


@pytest.mark.remedy("archive-incomplete")
def test_url_template_of_another_component_is_corrected(site: Site) -> None:
    template = "https://mirror.example/plugins-%s-%s.tgz"
    site.publish("cni", cni__url=template)
    assert site.refusal("containerd", containerd__url=template).name == "artifact-not-found"
    wrong = site.path("containerd", containerd__url=template)
    site.files[wrong] = site.files[site.path("cni")]
    pinned = {"containerd__sha256": {wrong.rpartition("/")[2]: sha256(site.files[wrong])}}
    assert site.refusal("containerd", containerd__url=template, **pinned).name == "archive-incomplete"
    advice("archive-incomplete", "Correct the URL template in the configuration.")
    site.stage("containerd")


@pytest.mark.remedy("offline-bundle-incomplete")
def test_bundle_is_created_for_the_configuration(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    target = site.room / "bundle.tar"
    assert flex(monkeypatch, "artifacts", "bundle", target, "--config", site.config_file()) == 0
    changed: dict[str, object] = {"runc__version": "1.4.9"}
    error = site.refusal(artifacts__bundle=str(target), **changed)
    assert error.name == "offline-bundle-incomplete"
    site.publish("runc", **changed)
    file = str(site.config_file(artifacts__bundle=str(target), **changed))  # as it is on this machine
    words = command(
        "offline-bundle-incomplete", "aks-flex-node artifacts bundle", TARGET=str(target), FILE=file, ARCH="amd64"
    )
    assert flex(monkeypatch, *words[1:]) == 0
    site.stage(artifacts__bundle=str(target), **changed)


@pytest.fixture
def bundle(site: Site, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a bundle in a directory, created with the configuration of the machine."""
    target = site.room / "bundle"
    assert flex(monkeypatch, "artifacts", "bundle", target, "--config", site.config_file(), "--arch", "amd64") == 0
    return target


@pytest.mark.remedy("offline-bundle-corrupt")
@pytest.mark.parametrize("way", ["copy", "create", "correct"])
def test_damaged_bundle_is_repaired(site: Site, bundle: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, pinned = shutil.copytree(bundle, site.room / "copy"), {}
    (name, content) = next((path.name, path.read_bytes()) for path in copy.glob("*/runc*"))
    if way == "correct":
        pinned = {"runc__sha256": {name: "0" * 64}}
    else:
        next(copy.glob("*/runc*")).write_bytes(content[:-1])
    assert site.refusal(artifacts__bundle=str(copy), **pinned).name == "offline-bundle-corrupt"
    if way == "copy":
        advice("offline-bundle-corrupt", "Copy the bundle again")
        shutil.copytree(bundle, copy, dirs_exist_ok=True)
    elif way == "create":
        words = command("offline-bundle-corrupt", "aks-flex-node artifacts bundle")
        file = site.config_file(artifacts__bundle=str(copy))
        assert flex(monkeypatch, *words[1:], copy, "--config", file) == 0
    else:
        advice(
            "offline-bundle-corrupt", "If the message names the hash of the configuration, correct `sha256` there."
        )
        pinned = {"runc__sha256": {name: sha256(content)}}
    site.stage(artifacts__bundle=str(copy), **pinned)


@pytest.mark.remedy("digest-invalid")
def test_digest_in_the_manifest_of_a_bundle_is_written(site: Site, bundle: Path) -> None:
    known = manifest(bundle)
    (entry,) = [each for each in known["artifacts"] if each["component"] == "runc"]
    right, entry["digest"] = entry["digest"], "sha256:of the file"
    (bundle / "manifest.json").write_text(json.dumps(known))
    assert site.refusal(artifacts__bundle=str(bundle)).name == "digest-invalid"
    advice("digest-invalid", "Write 64 hexadecimal digits (SHA-256)")
    advice("digest-invalid", "with or without the prefix `sha256:`")
    entry["digest"] = right.removeprefix("sha256:")
    (bundle / "manifest.json").write_text(json.dumps(known))
    site.stage(artifacts__bundle=str(bundle))


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        pytest.param(
            "offline-bundle-exists",
            "occupied",
            "Pass a directory that does not exist, or a file name that ends in `.tar` or `.tar.gz`.",
            marks=pytest.mark.remedy("offline-bundle-exists"),
        ),
        pytest.param(
            "offline-bundle-format-unsupported",
            "programs.zip",
            "Pass a directory, or a file name that ends in `.tar`, `.tar.gz` or `.tgz`.",
            marks=pytest.mark.remedy("offline-bundle-format-unsupported"),
        ),
        pytest.param(
            "bundle-architecture-unsupported",
            "new.tar --arch armhf",
            "`--arch arm64`",
            marks=pytest.mark.remedy("bundle-architecture-unsupported"),
        ),
    ],
)
def test_bundle_is_created_with_other_arguments(
    site: Site,
    name: str,
    wrong: str,
    right: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (site.room / "occupied").mkdir()
    (site.room / "occupied/letter").touch()
    site.files |= {path.replace("amd64", "arm64"): content for path, content in site.files.items()}
    file = site.config_file()
    words = wrong.split()
    assert flex(monkeypatch, "artifacts", "bundle", site.room / words[0], *words[1:], "--config", file) != 0
    assert name in capsys.readouterr().err
    advice(name, right)
    if name == "bundle-architecture-unsupported":
        targets: tuple[tuple[str, ...], ...] = (("new.tar", *command(name, "--arch arm64")),)
    else:
        targets = tuple((each,) for each in ("new", "new.tar", "new.tar.gz", "new.tgz"))
    for target, *options in targets:
        assert flex(monkeypatch, "artifacts", "bundle", site.room / target, *options, "--config", file) == 0
        assert (site.room / target).exists()
    assert (site.room / "occupied/letter").exists()
