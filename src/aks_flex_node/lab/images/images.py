"""An OCI image of one layer: the layer, a config and a manifest, each known by its digest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.images.layers import Layer, digest

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
CREATED = "1970-01-01T00:00:00Z"  # a date of its own would give every build another digest


@dataclass(frozen=True)
class Start:
    """What a container of the image starts, unless the pod says otherwise."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)
    user: str = ""
    folder: str = "/"


@dataclass(frozen=True)
class Blob:
    kind: str
    data: bytes

    @property
    def digest(self) -> str:
        return digest(self.data)

    def descriptor(self) -> dict[str, Any]:
        return {"mediaType": self.kind, "digest": self.digest, "size": len(self.data)}


@dataclass(frozen=True)
class Image:
    config: Blob
    layer: Blob
    manifest: Blob

    @property
    def digest(self) -> str:
        return self.manifest.digest


def make_image(layer: Layer, start: Start, architecture: str) -> Image:
    """`architecture` as Go names it: amd64 or arm64."""
    config = Blob(CONFIG_TYPE, as_json(config_of(layer, start, architecture)))
    packed = Blob(LAYER_TYPE, layer.data)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config.descriptor(),
        "layers": [packed.descriptor()],
    }
    return Image(config, packed, Blob(MANIFEST_TYPE, as_json(manifest)))


def config_of(layer: Layer, start: Start, architecture: str) -> dict[str, Any]:
    settings = {
        "Entrypoint": list(start.entrypoint),
        "Cmd": list(start.command),
        "Env": list(start.env),
        "User": start.user,
        "WorkingDir": start.folder,
    }
    return {
        "architecture": architecture,
        "os": "linux",
        "created": CREATED,
        "config": {name: value for name, value in settings.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
        "history": [{"created": CREATED, "created_by": "aks-flex-lab"}],
    }


def as_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
