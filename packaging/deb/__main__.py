"""`python -m deb requirements|build|index`: what scripts/deb and scripts/apt-repo are made of."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from aks_flex_node import __version__
from deb.package import PackageBuild, build_package
from deb.repository import apt_source, write_index
from deb.wheels import requirements

CHECKOUT = Path(__file__).parents[2]


def main() -> None:
    words = argparse.ArgumentParser(prog="python -m deb")
    commands = words.add_subparsers(required=True)
    pins = commands.add_parser("requirements", help="print the requirements of one Python")
    pins.add_argument("arch")
    pins.add_argument("python")
    pins.set_defaults(run=_requirements)
    build = commands.add_parser("build", help="write the package")
    build.add_argument("--version", default=__version__)
    build.add_argument("--when", type=int, required=True)
    build.add_argument("arch")
    build.add_argument("wheels", type=Path)
    build.add_argument("target", type=Path)
    build.set_defaults(run=_build)
    lists = commands.add_parser("index", help="write the lists of a repository, ready to be signed")
    lists.add_argument("repository", type=Path)
    lists.set_defaults(run=_index)
    known = commands.add_parser("source", help="print the file by which apt knows a repository")
    known.add_argument("url")
    known.add_argument("key", type=Path)
    known.set_defaults(run=_source)
    given = words.parse_args()
    given.run(given)


def _requirements(given: argparse.Namespace) -> None:
    print(requirements((CHECKOUT / "requirements/base.txt").read_text(), given.python, given.arch), end="")


def _build(given: argparse.Namespace) -> None:
    build = PackageBuild(given.version, given.arch, given.when, CHECKOUT, given.wheels)
    given.target.mkdir(parents=True, exist_ok=True)
    place = given.target / build.file_name
    place.write_bytes(build_package(build))
    print(place)


def _index(given: argparse.Namespace) -> None:
    write_index(given.repository, int(time.time()))


def _source(given: argparse.Namespace) -> None:
    print(apt_source(given.url, given.key.read_text()), end="")


if __name__ == "__main__":
    main()
