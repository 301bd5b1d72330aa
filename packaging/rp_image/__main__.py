"""Command line of `scripts/image`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from aks_flex_lab.tools.recipes import machine_arch
from aks_flex_node.errors import FlexError
from release.checkout import HOME, ReleaseError
from release.program_archives import PLATFORMS
from rp_image.image import ImageInputs, build_image, image_cache
from rp_image.image_packages import debian_archive


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/image", description="Build the image of the resource provider.")
    parser.add_argument("--arch", choices=sorted(PLATFORMS), default=machine_arch(), help="architecture of the image")
    parser.add_argument("--mirror", default="", help="Debian mirror; this host's by default")
    parser.add_argument(
        "--security-mirror", default="", help="mirror of Debian's security updates; this host's by default"
    )
    parser.add_argument("folder", type=Path, nargs="?", default=HOME / "dist", help="output directory")
    return parser.parse_args(arguments)


def main() -> None:
    options = parsed(sys.argv[1:])
    try:
        archive = debian_archive(options.mirror, options.security_mirror)
        with tempfile.TemporaryDirectory() as work:
            built = build_image(ImageInputs.fetch(options.arch, image_cache(), Path(work), archive))
    except (ReleaseError, FlexError) as error:
        sys.exit(f"image: {error}")
    print(f"{built.write(options.folder.resolve(), options.arch)}\n{built.image.digest}")


if __name__ == "__main__":
    main()
