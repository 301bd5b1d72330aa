"""Command line of the package build: `python -m deb requirements|build|index|source`.

Used by scripts/deb and scripts/apt-repo.
"""

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
    parser = argparse.ArgumentParser(prog="python -m deb")
    commands = parser.add_subparsers(required=True)
    pins = commands.add_parser("requirements", help="print the requirements of a Python version")
    pins.add_argument("arch")
    pins.add_argument("python")
    pins.set_defaults(run=_requirements)
    build = commands.add_parser("build", help="build the package")
    build.add_argument("--version", default=__version__)
    build.add_argument("--when", type=int, required=True)
    build.add_argument("arch")
    build.add_argument("wheels", type=Path)
    build.add_argument("target", type=Path)
    build.set_defaults(run=_build)
    index = commands.add_parser("index", help="write the index of a repository, ready for signing")
    index.add_argument("repository", type=Path)
    index.set_defaults(run=_index)
    source = commands.add_parser("source", help="print the apt source file of a repository")
    source.add_argument("url")
    source.add_argument("key", type=Path)
    source.set_defaults(run=_source)
    arguments = parser.parse_args()
    arguments.run(arguments)


def _requirements(arguments: argparse.Namespace) -> None:
    print(requirements((CHECKOUT / "requirements/base.txt").read_text(), arguments.python, arguments.arch), end="")


def _build(arguments: argparse.Namespace) -> None:
    build = PackageBuild(arguments.version, arguments.arch, arguments.when, CHECKOUT, arguments.wheels)
    arguments.target.mkdir(parents=True, exist_ok=True)
    path = arguments.target / build.file_name
    path.write_bytes(build_package(build))
    print(path)


def _index(arguments: argparse.Namespace) -> None:
    write_index(arguments.repository, int(time.time()))


def _source(arguments: argparse.Namespace) -> None:
    print(apt_source(arguments.url, arguments.key.read_text()), end="")


if __name__ == "__main__":
    main()
