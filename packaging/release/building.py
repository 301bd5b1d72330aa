"""Everything that a release consists of, made into one folder."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from aks_flex_node.lab.processes import run
from release import archives, licences, sbom, sums
from release.checkout import HOME, changed_at, version
from release.refusals import Refused
from release.trees import PLATFORMS, fetched


def wheels(target: Path) -> None:
    """The wheel of the agent, the provider and the lab, and that of the Azure CLI's extension."""
    env = {"SOURCE_DATE_EPOCH": str(changed_at())}
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    run(*words, cwd=HOME, env=env)
    run(HOME / "scripts" / "az-extension", target, cwd=HOME, env=env)


def programs(target: Path) -> None:
    """The agent's own release, which self-update fetches, and the provider's, for each processor."""
    for program in archives.PROGRAMS:
        for arch in PLATFORMS:
            archives.build(program, version(), arch, target, moment=changed_at())


def bills(target: Path) -> None:
    """What each program is made of, on any processor, and under which licences."""
    for program in archives.PROGRAMS:
        with tempfile.TemporaryDirectory() as work:
            trees = [tree for arch in PLATFORMS for tree in fetched(program.requirements, arch, Path(work))]
            found = licences.packages(trees)
        pinned = program.requirements.read_text()
        made = sbom.bill(program.name, version(), found, pinned, moment=changed_at())
        (target / f"{program.name}-{version()}.cdx.json").write_text(made)
        (target / f"{program.name}-{version()}-licences.txt").write_text(licences.listed(program.name, found))


def debs(target: Path) -> None:
    for arch in PLATFORMS:
        run(HOME / "scripts" / "deb", "--arch", arch, target, cwd=HOME, timeout=1800)


def install_script(target: Path, key: str | None) -> None:
    with tempfile.TemporaryDirectory() as work:
        public = sums.public_key(key, Path(work) / "key") if key else None
    script = target / sums.INSTALLER.name
    script.write_text(sums.installer(sums.INSTALLER.read_text(), public))
    script.chmod(0o755)


def finish(target: Path, key: str | None) -> None:
    """Last of all, because the list must be of everything."""
    sums.write_sums(target)
    if key:
        sums.sign(target, key)


def empty(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in target.iterdir():
        if path.is_file():
            path.unlink()


def run_checks(*words: str) -> None:
    """A check of the repository's own, with its output as it comes, because it takes minutes."""
    code = os.spawnvp(os.P_WAIT, words[0], list(words))  # noqa: S606 - it is an argument list
    if code:
        raise Refused(f"`{' '.join(words)}` failed. Mend that first.")
