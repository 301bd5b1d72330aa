"""Tests of image builds: reproducible layers, and manifests that match their content."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from aks_flex_lab.errors import ToolError
from aks_flex_lab.images.builder import (
    ContainerConfig,
    ImageIndex,
    LayerDirectory,
    LayerEntry,
    LayerFile,
    LayerLink,
    make_image,
    make_layer,
    make_layered_image,
    pause_image,
)
from aks_flex_lab.images.registry import RegistrySettings, registry_argv, registry_config

ENTRIES: tuple[LayerEntry, ...] = (
    LayerFile("/bin/tool", b"#!", 0o755),
    LayerLink("bin/alias", "tool"),
    LayerDirectory("/tmp", 0o1777),  # noqa: S108 - the image's own
)


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data))) as tar:
        return {member.name: member for member in tar.getmembers()}


def test_layer_does_not_depend_on_entry_order() -> None:
    assert make_layer(ENTRIES) == make_layer(reversed(ENTRIES))


def test_layer_contains_entries_and_parents_owned_by_root() -> None:
    found = members(make_layer(ENTRIES).data)
    assert list(found) == ["bin", "bin/alias", "bin/tool", "tmp"]
    assert [found[name].mode for name in ("bin", "bin/tool", "tmp")] == [0o755, 0o755, 0o1777]
    assert found["bin/alias"].linkname == "tool"
    assert {(each.uid, each.gid, each.mtime) for each in found.values()} == {(0, 0, 0)}


def test_layer_has_compressed_and_uncompressed_digests() -> None:
    layer = make_layer(ENTRIES)
    assert layer.digest == "sha256:" + hashlib.sha256(layer.data).hexdigest()
    assert layer.diff_id == "sha256:" + hashlib.sha256(gzip.decompress(layer.data)).hexdigest()


def test_layer_file_content_can_come_from_disk(tmp_path: Path) -> None:
    (tmp_path / "tool").write_bytes(b"#!")
    assert make_layer([LayerFile("tool", tmp_path / "tool")]) == make_layer([LayerFile("/tool", b"#!")])


def test_image_references_config_and_layer_by_digest() -> None:
    layer = make_layer(ENTRIES)
    image = make_image(layer, ContainerConfig(entrypoint=("/bin/tool",), command=("-v",), env=("A=b",)), "arm64")
    manifest, config = json.loads(image.manifest.data), json.loads(image.config.data)
    assert manifest["config"]["digest"] == image.config.digest
    assert manifest["layers"] == [
        {"mediaType": image.layers[0].kind, "digest": layer.digest, "size": len(layer.data)},
    ]
    assert (config["architecture"], config["rootfs"]["diff_ids"]) == ("arm64", [layer.diff_id])
    assert config["config"] == {"Entrypoint": ["/bin/tool"], "Cmd": ["-v"], "Env": ["A=b"], "WorkingDir": "/"}


def test_index_references_the_image_of_each_architecture() -> None:
    images = {arch: make_image(make_layer(ENTRIES), ContainerConfig(), arch) for arch in ("amd64", "arm64")}
    index = ImageIndex(images)
    document = json.loads(index.manifest.data)
    assert index.manifest.kind == document["mediaType"] == "application/vnd.oci.image.index.v1+json"
    assert [(each["platform"], each["digest"]) for each in document["manifests"]] == [
        ({"architecture": arch, "os": "linux"}, image.digest) for arch, image in images.items()
    ]
    assert images["amd64"].digest != images["arm64"].digest


def test_layers_of_image_keep_their_order_and_owners() -> None:
    layers = [make_layer(ENTRIES), make_layer([LayerDirectory("state", 0o700, 10001)])]
    image = make_layered_image(layers, ContainerConfig(user="10001:10001", ports=("8443/tcp",)), "amd64")
    manifest, config = json.loads(image.manifest.data), json.loads(image.config.data)
    assert [each["digest"] for each in manifest["layers"]] == [layer.digest for layer in layers]
    assert config["rootfs"]["diff_ids"] == [layer.diff_id for layer in layers]
    assert config["config"]["ExposedPorts"] == {"8443/tcp": {}}
    state = members(image.layers[1].data)["state"]
    assert (state.uid, state.gid, state.mode) == (10001, 10001, 0o700)


def test_pause_image_contains_one_program_and_runs_as_non_root(tmp_path: Path) -> None:
    (tmp_path / "pause").write_bytes(b"ELF")
    image = pause_image(tmp_path / "pause", "amd64")
    assert list(members(image.layers[0].data)) == ["pause"]
    assert json.loads(image.config.data)["config"]["User"] == "65535:65535"


def test_image_build_fails_when_program_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="is missing"):
        pause_image(tmp_path / "pause", "amd64")


def test_registry_config_has_address_storage_and_certificate() -> None:
    settings = RegistrySettings("198.18.0.5:443", Path("/var/x: y"), Path("/pki/a.crt"), Path("/pki/a.key"))
    lines = [line.strip() for line in registry_config(settings).splitlines()]
    assert 'addr: "198.18.0.5:443"' in lines
    assert 'rootdirectory: "/var/x: y"' in lines
    assert 'certificate: "/pki/a.crt"' in lines
    assert registry_argv(Path("/x/config.yml")) == ("docker-registry", "serve", "/x/config.yml")
