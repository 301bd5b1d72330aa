"""Builds the lab's OCI images reproducibly: layers from files, config, manifest, and the list of images and tags."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zlib
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from aks_flex_lab.errors import ToolError
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


COMPRESSION = 6
GZIP = 31  # makes zlib write a gzip header without a time, identical for every Python version


@dataclass(frozen=True)
class LayerFile:
    """A file of the image, with its content or the path of a file with this content."""

    path: str
    content: bytes | Path
    mode: int = 0o644


@dataclass(frozen=True)
class LayerDirectory:
    path: str
    mode: int = 0o755
    owner: int = 0  # UID and GID


@dataclass(frozen=True)
class LayerLink:
    path: str
    target: str


LayerEntry = LayerFile | LayerDirectory | LayerLink


@dataclass(frozen=True)
class ImageLayer:
    """A compressed layer, with its digest and the digest of its tar, which the image config contains."""

    data: bytes
    digest: str
    diff_id: str


def make_layer(entries: Iterable[LayerEntry]) -> ImageLayer:
    tar = layer_tar(entries)
    press = zlib.compressobj(COMPRESSION, zlib.DEFLATED, GZIP)
    data = press.compress(tar) + press.flush()
    return ImageLayer(data, sha256_digest(data), sha256_digest(tar))


def sha256_digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layer_tar(entries: Iterable[LayerEntry]) -> bytes:
    """Returns an uncompressed tar: sorted, with all parent directories, owned by root, with time 0."""
    named = {relative_path(entry.path): entry for entry in entries}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, entry in sorted(with_parents(named), key=itemgetter(0)):
            add_entry(tar, name, entry)
    return out.getvalue()


def with_parents(named: dict[str, LayerEntry]) -> Iterator[tuple[str, LayerEntry]]:
    parents = {str(parent) for name in named for parent in PurePosixPath(name).parents} - {"."}
    for name in parents - named.keys():
        yield name, LayerDirectory(name)
    yield from named.items()


def add_entry(tar: tarfile.TarFile, name: str, entry: LayerEntry) -> None:
    info = tarfile.TarInfo(name)  # The defaults are root, no owner name and time 0.
    if isinstance(entry, LayerDirectory):
        info.type, info.mode = tarfile.DIRTYPE, entry.mode
        info.uid = info.gid = entry.owner
        tar.addfile(info)
    elif isinstance(entry, LayerLink):
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, entry.target
        tar.addfile(info)
    else:
        content = entry.content.read_bytes() if isinstance(entry.content, Path) else entry.content
        info.size, info.mode = len(content), entry.mode
        tar.addfile(info, io.BytesIO(content))


def relative_path(path: str) -> str:
    return str(PurePosixPath("/", path).relative_to("/"))


INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
CREATED = "1970-01-01T00:00:00Z"  # a real date would change the digest with every build


@dataclass(frozen=True)
class ContainerConfig:
    """The command, environment and user of containers, unless the pod overrides them, and what tools show of them."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)
    user: str = ""
    folder: str = "/"
    ports: tuple[str, ...] = ()  # for example 8443/tcp
    labels: Mapping[str, str] = field(default_factory=dict)
    created: str = CREATED
    created_by: str = "aks-flex-lab"


@dataclass(frozen=True)
class ImageBlob:
    kind: str
    data: bytes

    @property
    def digest(self) -> str:
        return sha256_digest(self.data)

    def descriptor(self) -> dict[str, Any]:
        return {"mediaType": self.kind, "digest": self.digest, "size": len(self.data)}


@dataclass(frozen=True)
class OciImage:
    config: ImageBlob
    layers: tuple[ImageBlob, ...]
    manifest: ImageBlob

    @property
    def digest(self) -> str:
        return self.manifest.digest


@dataclass(frozen=True)
class ImageIndex:
    """Images of several architectures with one name, of which a node pulls that of its own."""

    images: Mapping[str, OciImage]  # by architecture

    @property
    def manifest(self) -> ImageBlob:
        platforms = [
            {**image.manifest.descriptor(), "platform": {"architecture": arch, "os": "linux"}}
            for arch, image in self.images.items()
        ]
        index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": platforms}
        return ImageBlob(INDEX_TYPE, canonical_json(index))

    @property
    def digest(self) -> str:
        return self.manifest.digest


def make_image(layer: ImageLayer, start: ContainerConfig, architecture: str) -> OciImage:
    """Builds an image of one layer for an architecture: amd64 or arm64."""
    return make_layered_image((layer,), start, architecture)


def make_layered_image(layers: Sequence[ImageLayer], start: ContainerConfig, architecture: str) -> OciImage:
    """Builds an image of several layers, the lowest first, so that an upgrade transfers only the changed ones."""
    config = ImageBlob(CONFIG_TYPE, canonical_json(image_config(layers, start, architecture)))
    packed = tuple(ImageBlob(LAYER_TYPE, layer.data) for layer in layers)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config.descriptor(),
        "layers": [blob.descriptor() for blob in packed],
    }
    return OciImage(config, packed, ImageBlob(MANIFEST_TYPE, canonical_json(manifest)))


def image_config(layers: Sequence[ImageLayer], start: ContainerConfig, architecture: str) -> dict[str, Any]:
    settings = {
        "Entrypoint": list(start.entrypoint),
        "Cmd": list(start.command),
        "Env": list(start.env),
        "User": start.user,
        "WorkingDir": start.folder,
        "ExposedPorts": {port: {} for port in start.ports},
        "Labels": dict(start.labels),
    }
    return {
        "architecture": architecture,
        "os": "linux",
        "created": start.created,
        "config": {name: value for name, value in settings.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": start.created, "created_by": start.created_by} for _ in layers],
    }


def canonical_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


NOBODY = "65535:65535"  # the user of the published pause image

PAUSE_NAMES = {
    "oss/kubernetes/pause": ("3.6", "3.9", "3.10"),  # mcr.microsoft.com
    "pause": ("3.8", "3.9", "3.10", "3.10.1"),  # registry.k8s.io
}
TEST_NAMES = {"flex/test": ("1",)}

PASSWD_FILE = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
GROUP_FILE = b"root:x:0:\nnogroup:x:65534:\n"
INDEX_PAGE = b"<!doctype html><title>flex</title><p>It works: this page comes from a pod of the lab.</p>\n"


@dataclass(frozen=True)
class TaggedImage:
    """An image and one of its names in the registry."""

    repository: str
    tag: str
    image: OciImage | ImageIndex


@dataclass(frozen=True)
class ImagePrograms:
    """The static programs from which the images of one architecture are built."""

    pause: Path
    busybox: Path


def lab_images(programs: Mapping[str, ImagePrograms]) -> tuple[TaggedImage, ...]:
    """Returns all images of the lab, built from the programs of each architecture, that of this host first.

    The commands of busybox are the same for all of them, and only the first busybox runs on this host.
    """
    applets = busybox_applets(next(iter(programs.values())).busybox)
    small = {arch: pause_image(made.pause, arch) for arch, made in programs.items()}
    test = {arch: busybox_image(made.busybox, applets, arch) for arch, made in programs.items()}
    return (*tagged_images(PAUSE_NAMES, _image_or_index(small)), *tagged_images(TEST_NAMES, _image_or_index(test)))


def _image_or_index(images: Mapping[str, OciImage]) -> OciImage | ImageIndex:
    """Returns an index of images, or the only image itself."""
    return ImageIndex(images) if len(images) > 1 else next(iter(images.values()))


def tagged_images(table: Mapping[str, tuple[str, ...]], image: OciImage | ImageIndex) -> tuple[TaggedImage, ...]:
    return tuple(TaggedImage(repository, tag, image) for repository, tags in table.items() for tag in tags)


def pause_image(binary: Path, architecture: str) -> OciImage:
    layer = make_layer([LayerFile("/pause", require_binary(binary), 0o755)])
    return make_image(layer, ContainerConfig(entrypoint=("/pause",), user=NOBODY), architecture)


def busybox_image(busybox: Path, applet_paths: Sequence[str], architecture: str) -> OciImage:
    """Builds an image with all busybox commands and a web page, for the pods of tests."""
    entries: list[LayerEntry] = [
        LayerFile("/bin/busybox", require_binary(busybox), 0o755),
        *(LayerLink(path, link_target(path)) for path in applet_paths if path != "bin/busybox"),
        LayerFile("/etc/passwd", PASSWD_FILE),
        LayerFile("/etc/group", GROUP_FILE),
        LayerFile("/www/index.html", INDEX_PAGE),
        LayerDirectory("/tmp", 0o1777),  # noqa: S108 - the image's own
        LayerDirectory("/root", 0o700),
    ]
    return make_image(make_layer(entries), ContainerConfig(command=("/bin/sh",)), architecture)


def busybox_applets(busybox: Path) -> tuple[str, ...]:
    """Returns the paths of busybox commands, for example `bin/sh` and `usr/bin/wget`."""
    return tuple(run(require_binary(busybox), "--list-full").out.split())


def link_target(path: str) -> str:
    """Returns the relative link from a command to `bin/busybox`, which is also valid outside the container."""
    return "../" * (len(PurePosixPath(path).parts) - 1) + "bin/busybox"


def require_binary(binary: Path) -> Path:
    if not binary.is_file():
        raise ToolError(
            "image-source-not-found",
            f"{binary} is missing, which the lab needs to build its images.",
            "Run `make setup` for busybox-static and `aks-flex-lab tools install pause` for pause.",
        )
    return binary
