"""Tests of image builds: reproducible layers, and manifests that match their content."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.errors import ToolError
from aks_flex_lab.images.builder import (
    ContainerConfig,
    LayerDirectory,
    LayerEntry,
    LayerFile,
    LayerLink,
    make_layer,
    make_layered_image,
    pause_image,
)

if TYPE_CHECKING:
    from pathlib import Path

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


def test_layers_of_image_keep_their_order_and_owners() -> None:
    layers = [make_layer(ENTRIES), make_layer([LayerDirectory("state", 0o700, 10001)])]
    image = make_layered_image(layers, ContainerConfig(user="10001:10001", ports=("8443/tcp",)), "amd64")
    manifest, config = json.loads(image.manifest.data), json.loads(image.config.data)
    assert [each["digest"] for each in manifest["layers"]] == [layer.digest for layer in layers]
    assert config["rootfs"]["diff_ids"] == [layer.diff_id for layer in layers]
    assert config["config"]["ExposedPorts"] == {"8443/tcp": {}}
    state = members(image.layers[1].data)["state"]
    assert (state.uid, state.gid, state.mode) == (10001, 10001, 0o700)


def test_image_build_fails_when_program_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="is missing"):
        pause_image(tmp_path / "pause", "amd64")
