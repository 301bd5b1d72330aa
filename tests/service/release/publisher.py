"""A signed release of a stand-in package, and the root of a machine to install it into."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_lab.processes import CommandResult, run
from release.build_steps import write_and_sign_sums, write_install_script, write_sums

if TYPE_CHECKING:
    from pathlib import Path

CONTROL = """Package: aks-flex-node
Version: {version}
Architecture: {arch}
Maintainer: Nobody <nobody@example.com>
Description: stand-in
"""
EXAMPLE = "etc/aks-flex-node/config.yaml.example"
# What install.sh calls of apt, done by the real dpkg in a separate root.
APT_GET = """#!/bin/sh
set -eu
options=
for word; do
    case $word in
        install | remove | purge) verb=$word ;;
        Dpkg::Options::=*) options="$options ${{word#*=}}" ;;
        -* | Dpkg::*) ;;
        *) what=$word ;;
    esac
done
case $verb in
    install) dpkg --root={root} --log={root}/log $options --install "$what" ;;
    *) dpkg --root={root} --log={root}/log "--$verb" "$what" ;;
esac
"""
DPKG_QUERY = """#!/bin/sh
exec /usr/bin/dpkg-query --admindir={root}/var/lib/dpkg "$@"
"""


@dataclass(frozen=True)
class Signer:
    """A gpg home with one key."""

    home: Path

    def make(self) -> None:
        self.home.mkdir(mode=0o700)
        words = ["--batch", "--passphrase", "", "--quick-generate-key", self.name, "ed25519", "sign", "never"]
        run("gpg", *words, env=self.env)

    @property
    def name(self) -> str:
        return "release@example.com"

    @property
    def env(self) -> dict[str, str]:
        return {"GNUPGHOME": str(self.home)}

    def stop(self) -> None:
        run("gpgconf", "--kill", "all", env=self.env)


def deb(folder: Path, version: str) -> Path:
    arch = run("dpkg", "--print-architecture").out.strip()
    debian = version.replace("rc", "~rc")
    tree = folder / f"tree-{version}"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(CONTROL.format(version=debian, arch=arch))
    (tree / "DEBIAN" / "conffiles").write_text(f"/{EXAMPLE}\n")
    (tree / EXAMPLE).parent.mkdir(parents=True)
    (tree / EXAMPLE).write_text(f"# of {version}\n")
    (tree / "usr" / "bin").mkdir(parents=True)
    (tree / "usr" / "bin" / "aks-flex-node").write_text(f"#!/bin/sh\necho {version}\n")
    made = folder / f"aks-flex-node_{version}_{arch}.deb"
    run("dpkg-deb", "--root-owner-group", "--build", tree, made)
    shutil.rmtree(tree)
    return made


def publish(folder: Path, version: str, key: str | None) -> Path:
    """Creates a signed release directory as `scripts/release` does, with one package."""
    folder.mkdir()
    deb(folder, version)
    write_install_script(folder, key)
    write_and_sign_sums(folder, key)
    return folder


@dataclass(frozen=True)
class Site:
    """A release, and a root to install it into."""

    release: Path
    root: Path
    programs: Path

    def prepare(self) -> None:
        admin = self.root / "var" / "lib" / "dpkg"
        for name in ("info", "updates", "triggers"):
            (admin / name).mkdir(parents=True)
        (admin / "status").touch()
        self.programs.mkdir()
        for name, text in (("apt-get", APT_GET), ("dpkg-query", DPKG_QUERY)):
            (self.programs / name).write_text(text.format(root=self.root))
            (self.programs / name).chmod(0o755)

    def sh(self, *words: str, script: Path | None = None) -> CommandResult:
        path = f"{self.programs}:/usr/sbin:/usr/bin:/sbin:/bin"
        # Without a terminal, as in an automated installation.
        argv = ["setsid", "--wait", "sh", str(script or self.release / "install.sh"), *words]
        return run(*argv, env={"PATH": path}, check=False)

    def install(self, *words: str, base: str | None = None) -> CommandResult:
        return self.sh("--base-url", base or f"file://{self.release}", *words)

    @property
    def command(self) -> Path:
        return self.root / "usr" / "bin" / "aks-flex-node"

    def resign(self) -> None:
        """Updates the checksums without the key."""
        write_sums(self.release)
