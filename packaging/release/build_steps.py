"""Build steps of a release: wheels, programs, packages, SBOMs, installer, checksums and signature."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import tempfile
from pathlib import Path

from aks_flex_lab.processes import run
from release import program_archives, sbom
from release.checkout import DISTRIBUTIONS, HOME, ReleaseError, changed_at, version
from release.program_archives import PLATFORMS, fetch_trees

SUMS = "SHA256SUMS"
SIGNATURE = f"{SUMS}.asc"
UNSIGNED_SUMS = f"{SUMS}.unsigned"
INSTALLER = HOME / "packaging" / "install" / "install.sh"
NO_KEY = "key='@KEY@'"


def write_sums(folder: Path) -> None:
    """Writes the SHA-256 checksums of all files."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in {SUMS, SIGNATURE})
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / SUMS).write_text("".join(lines))


def sign(folder: Path, key: str) -> None:
    """Signs the checksums with a key of the caller's keyring. gpg-agent handles the passphrase."""
    (folder / SIGNATURE).unlink(missing_ok=True)
    options = ["--batch", "--local-user", key, "--armor", "--digest-algo", "SHA512", "--detach-sign"]
    run("gpg", *options, "--output", folder / SIGNATURE, folder / SUMS, timeout=300)


def public_key(key: str, file: Path) -> bytes:
    """Exports the public key in its minimal form."""
    run("gpg", "--batch", "--yes", "--export-options", "export-minimal", "--output", file, "--export", key)
    if not file.exists():
        raise ReleaseError(f"The key {key} was not found in the gpg keyring.")
    return file.read_bytes()


def write_keys(keys: list[str], file: Path) -> None:
    """Writes the public keys that ship with the agent: the current one and the next one."""
    with tempfile.TemporaryDirectory() as work:
        file.write_bytes(b"".join(public_key(key, Path(work) / str(index)) for index, key in enumerate(keys)))


def require_shipped(key: str, file: Path) -> None:
    """Raises ReleaseError if machines with this release would refuse the next one, signed with the same key."""
    shipped = fingerprints("--show-keys", str(file)) if file.exists() else set()
    if not fingerprints("--list-keys", key) & shipped:
        raise ReleaseError(
            f"The agent does not ship the key {key}, so its self-update would refuse this release. Run "
            "`scripts/release-keys KEY NEXT_KEY`, and commit the file."
        )


def fingerprints(*words: str) -> set[str]:
    lines = run("gpg", "--batch", "--with-colons", *words, check=False).out.splitlines()
    return {line.split(":")[9] for line in lines if line.startswith("fpr:")}


def installer(template: str, key: bytes | None) -> str:
    """Returns install.sh with the public key. Without a key, install.sh requires --key."""
    if template.count(NO_KEY) != 1:
        raise ReleaseError(f"{INSTALLER.name} does not contain the placeholder of the key.")
    return template if key is None else template.replace(NO_KEY, f"key='{base64.b64encode(key).decode()}'")


def build_wheels(target: Path) -> None:
    """Builds the wheels of the agent, the provider, the lab and the Azure CLI extension."""
    env = {"SOURCE_DATE_EPOCH": str(changed_at())}
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    for project in DISTRIBUTIONS.values():
        run(*command, cwd=project, env=env)
    run(HOME / "scripts" / "az-extension", target, cwd=HOME, env=env)


def build_programs(target: Path) -> None:
    """Builds the archives of the agent, which self-update downloads, and of the provider for each architecture."""
    for program in program_archives.PROGRAMS:
        for arch in PLATFORMS:
            program_archives.build_archive(program, version(), arch, target, moment=changed_at())


def build_images(target: Path) -> None:
    for arch in PLATFORMS:
        run(HOME / "scripts" / "image", "--arch", arch, target, cwd=HOME, timeout=1800)


def write_sboms(target: Path) -> None:
    """Writes the SBOM and the licence list of each program."""
    for program in program_archives.PROGRAMS:
        with tempfile.TemporaryDirectory() as work:
            trees = [tree for arch in PLATFORMS for tree in fetch_trees(program.requirements, arch, Path(work))]
            found = sbom.shipped_packages(trees)
        pinned = program.requirements.read_text()
        document = sbom.bill_of_materials(program.name, version(), found, pinned, moment=changed_at())
        (target / f"{program.name}-{version()}.cdx.json").write_text(document)
        (target / f"{program.name}-{version()}-licences.txt").write_text(sbom.licence_list(program.name, found))


def build_debs(target: Path) -> None:
    for arch in PLATFORMS:
        run(HOME / "scripts" / "deb", "--arch", arch, target, cwd=HOME, timeout=1800)


def write_install_script(target: Path, key: str | None) -> None:
    with tempfile.TemporaryDirectory() as work:
        public = public_key(key, Path(work) / "key") if key else None
    script = target / INSTALLER.name
    script.write_text(installer(INSTALLER.read_text(), public))
    script.chmod(0o755)


def write_and_sign_sums(target: Path, key: str | None) -> None:
    """Writes and signs the checksums. Must be the last step, because it covers all files."""
    write_sums(target)
    if key:
        sign(target, key)
    else:  # neither install.sh nor self-update finds a list of this name
        (target / SUMS).rename(target / UNSIGNED_SUMS)


def empty_folder(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in target.iterdir():
        if path.is_file():
            path.unlink()


def run_checks(*command: str) -> None:
    """Runs a check of the repository with its output, because it takes minutes."""
    code = os.spawnvp(os.P_WAIT, command[0], list(command))  # noqa: S606 - an argument list, no shell
    if code:
        raise ReleaseError(f"`{' '.join(command)}` failed. Fix it first.")
