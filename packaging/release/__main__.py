"""Command line of `scripts/release`, `scripts/sbom` and `scripts/programs`."""

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
from release.checkout import HOME, SHIPPED_KEYS, ReleaseError, require_ready

if TYPE_CHECKING:
    from collections.abc import Callable

NEXT = """
Built: {folder}
{unsigned}Next:
  1. git tag -s v{version} -m 'Version {version}' && git push origin v{version}
  2. Upload all files of {folder} to the release v{version}.
  3. scripts/apt-repo --key {key} --url URL FOLDER adds the packages to the APT repository. Publish that folder.
  4. Test on a machine: install.sh --version {version} --dry-run
"""
UNSIGNED = "The release is NOT signed (SHA256SUMS.unsigned): install.sh and self-update refuse it. Set --key.\n"
KEY_VARIABLE = "AKS_FLEX_RELEASE_KEY"


@dataclass(frozen=True)
class ReleaseStep:
    """One step of a release."""

    what: str
    do: Callable[[], None]


def steps(options: argparse.Namespace) -> list[ReleaseStep]:
    """Returns the steps of a release."""
    target, key = options.dist, options.key
    both = ReleaseStep("run all tests", lambda: build_steps.run_checks("make", "test", "test-full"))
    tests = [] if options.skip_tests else [both]
    signing = "write SHA256SUMS" + (f" and sign it with {key}" if key else " (unsigned without --key)")
    return [
        ReleaseStep("check formatting, rules, types and layers", lambda: build_steps.run_checks("make", "lint")),
        *tests,
        ReleaseStep(f"empty {target.name}/", lambda: build_steps.empty_folder(target)),
        ReleaseStep("build the wheels", lambda: build_steps.build_wheels(target)),
        ReleaseStep(
            "build the archives of the agent and the provider for amd64 and arm64",
            lambda: build_steps.build_programs(target),
        ),
        ReleaseStep("build the images of the provider for amd64 and arm64", lambda: build_steps.build_images(target)),
        ReleaseStep("build the Debian packages for amd64 and arm64", lambda: build_steps.build_debs(target)),
        ReleaseStep("write the SBOMs and the licence lists", lambda: build_steps.write_sboms(target)),
        ReleaseStep("write install.sh", lambda: build_steps.write_install_script(target, key)),
        ReleaseStep(signing, lambda: build_steps.write_and_sign_sums(target, key)),
    ]


def release(options: argparse.Namespace) -> None:
    """Runs all steps of a release, or prints them in a dry run."""
    require_ready(options.version, tested=not options.skip_tests)
    if options.key:
        build_steps.require_shipped(options.key, SHIPPED_KEYS)
    planned = steps(options)
    for number, step in enumerate(planned, 1):
        print(f"[{number}/{len(planned)}] {step.what}", flush=True)
        began = time.monotonic()
        if not options.dry_run:
            step.do()
            print(f"      {time.monotonic() - began:.0f} s", flush=True)
    if options.dry_run:
        print("Dry run: nothing was built.")
    else:
        unsigned = "" if options.key else UNSIGNED
        print(NEXT.format(folder=options.dist, version=options.version, key=options.key or "KEY", unsigned=unsigned))


def bills(options: argparse.Namespace) -> None:
    options.dist.mkdir(parents=True, exist_ok=True)
    build_steps.write_sboms(options.dist)


def programs(options: argparse.Namespace) -> None:
    options.dist.mkdir(parents=True, exist_ok=True)
    build_steps.build_programs(options.dist)


def keys(options: argparse.Namespace) -> None:
    build_steps.write_keys([options.key, options.next_key], SHIPPED_KEYS)
    print(f"Written: {SHIPPED_KEYS}. Commit it.")


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("release", prog="scripts/release", help="check, build and sign a release")
    command.add_argument("version", metavar="VERSION", help="the version in src/aks_flex_node/__init__.py")
    given = os.environ.get(KEY_VARIABLE)
    command.add_argument("--key", default=given, help=f"sign with this key of your gpg keyring (or {KEY_VARIABLE})")
    command.add_argument("--skip-tests", action="store_true", help="skip the tests, for a pre-release (rc1)")
    command.add_argument("--dry-run", action="store_true", help="check the prerequisites and print the steps")
    command.add_argument("--dist", type=Path, default=HOME / "dist", help="output directory, emptied first")
    command.set_defaults(do=release)
    part = commands.add_parser("keys", prog="scripts/release-keys", help="write the public keys of the agent")
    part.add_argument("key", help="the key that signs releases")
    part.add_argument("next_key", help="the key that will sign releases after it")
    part.set_defaults(do=keys, dist=HOME)
    for name, does in (("sbom", bills), ("programs", programs)):
        part = commands.add_parser(name, prog=f"scripts/{name}")
        part.add_argument("dist", type=Path, nargs="?", default=HOME / "dist")
        part.set_defaults(do=does)
    return parser.parse_args(arguments)


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
