"""Which images a lab's registry holds, and under which names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from aks_flex_node.lab.errors import ToolError
from aks_flex_node.lab.images.images import Image, Start, make_image
from aks_flex_node.lab.images.layers import Entry, File, Folder, Link, make_layer
from aks_flex_node.lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOBODY = "65535:65535"  # whom the published pause image runs as

PAUSE_NAMES = {
    "oss/kubernetes/pause": ("3.6", "3.9", "3.10"),  # mcr.microsoft.com
    "pause": ("3.8", "3.9", "3.10", "3.10.1"),  # registry.k8s.io
}
TEST_NAMES = {"flex/test": ("1",)}

PASSWD = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
GROUP = b"root:x:0:\nnogroup:x:65534:\n"
WELCOME = b"<!doctype html><title>flex</title><p>It works: this page comes from a pod of the lab.</p>\n"


@dataclass(frozen=True)
class Named:
    """An image and one name that it has in the registry."""

    repository: str
    tag: str
    image: Image


def lab_images(pause: Path, architecture: str, busybox: Path) -> tuple[Named, ...]:
    """All the lab's images, made from a static `pause` and a static busybox."""
    small = pause_image(pause, architecture)
    test = busybox_image(busybox, applets(busybox), architecture)
    return (*names(PAUSE_NAMES, small), *names(TEST_NAMES, test))


def names(table: Mapping[str, tuple[str, ...]], image: Image) -> tuple[Named, ...]:
    return tuple(Named(repository, tag, image) for repository, tags in table.items() for tag in tags)


def pause_image(binary: Path, architecture: str) -> Image:
    layer = make_layer([File("/pause", require(binary), 0o755)])
    return make_image(layer, Start(entrypoint=("/pause",), user=NOBODY), architecture)


def busybox_image(busybox: Path, applet_paths: Sequence[str], architecture: str) -> Image:
    """Busybox under all its names, with a page to serve: enough for every pod that a test runs."""
    entries: list[Entry] = [
        File("/bin/busybox", require(busybox), 0o755),
        *(Link(path, link_target(path)) for path in applet_paths if path != "bin/busybox"),
        File("/etc/passwd", PASSWD),
        File("/etc/group", GROUP),
        File("/www/index.html", WELCOME),
        Folder("/tmp", 0o1777),  # noqa: S108 - the image's own
        Folder("/root", 0o700),
    ]
    return make_image(make_layer(entries), Start(command=("/bin/sh",)), architecture)


def applets(busybox: Path) -> tuple[str, ...]:
    """The paths busybox would be installed under, such as `bin/sh` and `usr/bin/wget`."""
    return tuple(run(require(busybox), "--list-full").out.split())


def link_target(path: str) -> str:
    """From `usr/bin/wget` to `bin/busybox`, relative, so that it holds from outside the container, too."""
    return "../" * (len(PurePosixPath(path).parts) - 1) + "bin/busybox"


def require(binary: Path) -> Path:
    if not binary.is_file():
        raise ToolError(
            "image-source-missing",
            f"{binary} is missing, and an image of the lab is made from it.",
            "Run `make setup` for busybox-static and `aks-flex-lab tools install pause` for pause.",
        )
    return binary
