"""`scripts/release` and `scripts/sbom`: what they do, as a list of steps."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.errors import FlexError
from release import build_steps
from release.checkout import HOME, ReleaseError, require_ready

if TYPE_CHECKING:
    from collections.abc import Callable

NEXT = """
Made: {folder}
{unsigned}Next:
  1. git tag -s v{version} -m 'Version {version}' && git push origin v{version}
  2. Upload all of {folder} as the files of the release v{version}.
  3. scripts/apt-repo --key {key} --url URL FOLDER puts the new packages into the APT repository; publish that folder.
  4. On a machine of yours: install.sh --version {version} --dry-run
"""
UNSIGNED = "It is NOT signed: install.sh will refuse it. Give --key to sign it.\n"


@dataclass(frozen=True)
class ReleaseStep:
    """One line of what is done."""

    what: str
    do: Callable[[], None]


def steps(options: argparse.Namespace) -> list[ReleaseStep]:
    target, key = options.dist, options.key
    tests = (
        [] if options.skip_tests else [ReleaseStep("run all tests", lambda: build_steps.run_checks("make", "test"))]
    )
    signing = "write SHA256SUMS" + (f" and sign it with {key}" if key else "; without --key it is not signed")
    return [
        ReleaseStep("check formatting, rules, types and layers", lambda: build_steps.run_checks("make", "lint")),
        *tests,
        ReleaseStep(f"empty {target.name}/", lambda: build_steps.empty_folder(target)),
        ReleaseStep("build the wheels", lambda: build_steps.build_wheels(target)),
        ReleaseStep(
            "build the agent and the provider to unpack, for amd64 and arm64",
            lambda: build_steps.build_programs(target),
        ),
        ReleaseStep("build the Debian packages, for amd64 and arm64", lambda: build_steps.build_debs(target)),
        ReleaseStep(
            "write the bills of materials and the lists of licences", lambda: build_steps.write_sboms(target)
        ),
        ReleaseStep("write install.sh", lambda: build_steps.write_install_script(target, key)),
        ReleaseStep(signing, lambda: build_steps.write_and_sign_sums(target, key)),
    ]


def release(options: argparse.Namespace) -> None:
    require_ready(options.version, tested=not options.skip_tests)
    planned = steps(options)
    for number, step in enumerate(planned, 1):
        print(f"[{number}/{len(planned)}] {step.what}", flush=True)
        began = time.monotonic()
        if not options.dry_run:
            step.do()
            print(f"      {time.monotonic() - began:.0f} s", flush=True)
    if options.dry_run:
        print("Nothing was built: this was --dry-run.")
    else:
        unsigned = "" if options.key else UNSIGNED
        print(NEXT.format(folder=options.dist, version=options.version, key=options.key or "KEY", unsigned=unsigned))


def bills(options: argparse.Namespace) -> None:
    options.dist.mkdir(parents=True, exist_ok=True)
    build_steps.write_sboms(options.dist)


def programs(options: argparse.Namespace) -> None:
    options.dist.mkdir(parents=True, exist_ok=True)
    build_steps.build_programs(options.dist)


def parsed(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts")
    commands = parser.add_subparsers(required=True)
    made = commands.add_parser(
        "release", prog="scripts/release", help="check everything, then build, describe, sum up and sign a release"
    )
    made.add_argument("version", metavar="VERSION", help="as src/aks_flex_node/__init__.py has it")
    made.add_argument("--key", help="sign with this key of your gpg keyring")
    made.add_argument("--skip-tests", action="store_true", help="for a version before the final one (rc1)")
    made.add_argument("--dry-run", action="store_true", help="check that it could be released, and show the steps")
    made.add_argument("--dist", type=Path, default=HOME / "dist", help="where to; what is in it goes")
    made.set_defaults(do=release)
    for name, does in (("sbom", bills), ("programs", programs)):
        part = commands.add_parser(name, prog=f"scripts/{name}")
        part.add_argument("dist", type=Path, nargs="?", default=HOME / "dist")
        part.set_defaults(do=does)
    return parser.parse_args(words)


def main() -> None:
    options = parsed(sys.argv[1:])
    options.dist = options.dist.resolve()
    os.chdir(HOME)
    try:
        options.do(options)
    except (ReleaseError, FlexError) as error:
        sys.exit(f"release: {error}")


if __name__ == "__main__":
    main()
