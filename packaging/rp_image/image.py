"""Builds the image and writes it as an OCI archive, for `podman load`, `skopeo copy` and registries."""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.files import file_lock
from aks_flex_lab.images.builder import (
    INDEX_TYPE,
    ContainerConfig,
    LayerFile,
    canonical_json,
    make_layer,
    make_layered_image,
)
from aks_flex_lab.processes import run
from aks_flex_lab.tools.recipes import machine_arch
from aks_flex_node.timestamps import format_utc
from aks_flex_rp.settings import DEFAULT_PORT
from release import sbom
from release.checkout import HOME, changed_at, version
from release.program_archives import PROVIDER, fetch_trees
from rp_image.image_files import (
    PROGRAM,
    STATE,
    USER,
    library_files,
    mount_points,
    program_files,
    system_files,
    with_bytecode,
)
from rp_image.image_packages import DISTRO, PYTHON, DebianArchive, fetch_packages

if TYPE_CHECKING:
    from aks_flex_lab.images.builder import OciImage
    from release.program_archives import PackageTree
    from rp_image.image_packages import DebianPackage

SBOM_PATH = f"usr/share/doc/{PROVIDER.name}/sbom.cdx.json"


def image_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "aks-flex-node" / "image"


@dataclass(frozen=True)
class ImageInputs:
    """The packages of an image. The same ones, with the same checkout, give the same image."""

    arch: str
    packages: list[DebianPackage]
    tree: PackageTree
    host_packages: list[DebianPackage]  # of this host's architecture, to compile modules

    @classmethod
    def fetch(cls, arch: str, cache: Path, work: Path, archive: DebianArchive) -> ImageInputs:
        cache.mkdir(parents=True, exist_ok=True)
        own = machine_arch()
        with file_lock(cache / ".lock", "the packages of the image", wait=True):
            packages = fetch_packages(arch, cache, archive)
            host_packages = packages if arch == own else fetch_packages(own, cache, archive)
        [tree] = fetch_trees(PROVIDER.requirements, arch, work, (PYTHON,))
        return cls(arch, packages, tree, host_packages)


@dataclass(frozen=True)
class BuiltImage:
    image: OciImage
    bill: str  # the software bill of materials

    def write(self, folder: Path, arch: str) -> Path:
        """Writes the OCI archive and the software bill of materials; returns the path of the archive."""
        folder.mkdir(parents=True, exist_ok=True)
        archive = folder / f"{PROVIDER.name}-{version()}-linux-{arch}.oci.tar"
        archive.write_bytes(oci_archive(self.image, f"{PROVIDER.name}:{version()}"))
        archive.with_name(archive.name.removesuffix(".oci.tar") + "-image.cdx.json").write_text(self.bill)
        return archive


def build_image(inputs: ImageInputs) -> BuiltImage:
    system, libraries, program = with_bytecode(
        [system_files(inputs.packages), library_files(inputs.tree), program_files()],
        system_files(inputs.host_packages),
    )
    bill = bill_of_materials(inputs)
    contents = (
        system.values(),
        libraries.values(),
        (*program.values(), LayerFile(SBOM_PATH, bill.encode()), *mount_points()),
    )
    return BuiltImage(
        make_layered_image([make_layer(each) for each in contents], container_config(), inputs.arch), bill
    )


def bill_of_materials(inputs: ImageInputs) -> str:
    found = sbom.shipped_packages([inputs.tree])
    system = sorted((package.component() for package in inputs.packages), key=itemgetter("name"))
    pinned = PROVIDER.requirements.read_text()
    return sbom.bill_of_materials(PROVIDER.name, version(), found, pinned, moment=changed_at(), system=system)


def container_config() -> ContainerConfig:
    created = format_utc(changed_at())
    return ContainerConfig(
        entrypoint=(PROVIDER.name,),
        command=("serve",),
        env=(f"PATH=/{PROGRAM}/bin:/usr/bin", f"AKS_FLEX_RP_STATE=/{STATE}"),
        user=f"{USER}:{USER}",
        folder=f"/{STATE}",
        ports=(f"{DEFAULT_PORT}/tcp",),
        labels={
            "org.opencontainers.image.title": PROVIDER.name,
            "org.opencontainers.image.description": "Resource provider of AKS Flex Node",
            "org.opencontainers.image.version": version(),
            "org.opencontainers.image.revision": run("git", "rev-parse", "HEAD", cwd=HOME).out.strip(),
            "org.opencontainers.image.licenses": "MIT",
            "org.opencontainers.image.base.name": DISTRO,
            "org.opencontainers.image.created": created,
        },
        created=created,
        created_by="scripts/image",
    )


def oci_archive(image: OciImage, name: str) -> bytes:
    """Returns an image layout as a tar, with the name that `podman load` gives the image."""
    manifest = {**image.manifest.descriptor(), "annotations": {"org.opencontainers.image.ref.name": name}}
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [manifest]}
    blobs = (image.manifest, image.config, *image.layers)
    files = {
        "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
        "index.json": canonical_json(index),
        **{f"blobs/{blob.digest.replace(':', '/')}": blob.data for blob in blobs},
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(files):
            member = tarfile.TarInfo(path)
            member.size = len(files[path])
            tar.addfile(member, io.BytesIO(files[path]))
    return out.getvalue()
