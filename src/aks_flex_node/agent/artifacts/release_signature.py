"""Verifies the signature of a release's checksum list (SHA256SUMS.asc) with the keys that this machine trusts: those
that ship with the agent, and the administrator's in /etc/aks-flex-node/release-keys.

Signatures are verified with the program that apt uses: gpgv, or sqv on Debian 13.
"""

from __future__ import annotations

import base64
import os
import re
import stat
import tempfile
from pathlib import Path

from aks_flex_node.agent.artifacts.digest import Digest, find_digest
from aks_flex_node.errors import ArtifactError
from aks_flex_node.host.host import MISSING_PROGRAM, CommandResult
from aks_flex_node.host.processes import run

SUMS = "SHA256SUMS"
SIGNATURE = f"{SUMS}.asc"
SHIPPED_KEYS = Path(__file__).parents[1] / "release-keys.gpg"  # of a release build: the current key and the next one
ADMINISTRATOR_KEYS = Path("/etc/aks-flex-node/release-keys")
VERIFY_SECONDS = 30.0
ARMORED_KEY = re.compile(
    r"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[^\r\n]+: [^\r\n]*\r?\n)*\r?\n(?P<body>[A-Za-z0-9+/=\s]+?)"
    r"(?:\r?\n=[A-Za-z0-9+/]{4})?\s*-----END PGP PUBLIC KEY BLOCK-----"
)
GOOD, WRONG = "[GNUPG:] GOODSIG ", ("EXPKEYSIG", "REVKEYSIG", "EXPSIG", "BADSIG", "ERRSIG")


def signed_digest(sums: bytes, signature: bytes, name: str, keys: bytes | None = None) -> Digest:
    """Returns the digest of a file in a signed checksum list. Raises ArtifactError if the list is not genuine.

    `keys` are OpenPGP public keys, those of this machine by default.
    """
    keyring = trusted_keys() if keys is None else keys
    if not keyring:
        raise signature_error("this machine has no key to verify it with")
    with tempfile.TemporaryDirectory() as work:
        for file, content in (("keys.gpg", keyring), (SUMS, sums), (SIGNATURE, signature)):
            (Path(work) / file).write_bytes(content)
        if problem := find_problem(verify(Path(work))):
            raise signature_error(problem)
    digest = find_digest(sums.decode("utf-8", "replace"), name)
    if digest is None:
        raise signature_error(f"the list does not contain {name}")
    return digest


def verify(work: Path) -> CommandResult:
    keyring, files = str(work / "keys.gpg"), (str(work / SIGNATURE), str(work / SUMS))
    gpgv = ("gpgv", "--status-fd", "1", "--homedir", str(work), "--keyring", keyring, *files)
    found = run(gpgv, seconds=VERIFY_SECONDS)
    if found.code != MISSING_PROGRAM:
        return found
    sqv = run(("sqv", "--keyring", keyring, *files), seconds=VERIFY_SECONDS)
    return CommandResult(0, GOOD) if sqv.ok else sqv


def find_problem(found: CommandResult) -> str:
    """Returns why a signature does not count; empty if it does. gpgv itself accepts expired and revoked keys."""
    if found.code == MISSING_PROGRAM:
        return "neither gpgv nor sqv is installed"
    words = {line.split()[1] for line in found.out.splitlines() if line.startswith("[GNUPG:] ")}
    if "NO_PUBKEY" in words:
        return "it was made with a key that this machine does not trust"
    if "REVKEYSIG" in words:
        return "its key is revoked"
    if "EXPKEYSIG" in words or "EXPSIG" in words:
        return "its key has expired"
    if not found.ok or GOOD not in found.out or words & set(WRONG):
        return "it does not match the list"
    return ""


def trusted_keys(shipped: Path = SHIPPED_KEYS, own: Path = ADMINISTRATOR_KEYS) -> bytes:
    """Returns the OpenPGP keys that ship with the agent and those of the administrator, as one keyring."""
    files = [shipped] if shipped.is_file() else []
    if own.is_dir():
        require_roots(own)
        files += sorted(path for path in own.iterdir() if path.suffix in {".gpg", ".asc"})
    return b"".join(read_key(path) for path in files)


def read_key(path: Path) -> bytes:
    """Reads a public key, with or without ASCII armor."""
    require_roots(path)
    try:
        content = path.read_bytes()
        return dearmor(content.decode()) if b"-----BEGIN PGP" in content else content
    except (OSError, ValueError) as error:
        raise release_key_error(path, f"cannot be read ({error})") from error


def dearmor(text: str) -> bytes:
    """Returns the binary form of the armored public keys in a text. Raises ValueError, also if one is damaged."""
    blocks = ["".join(block["body"].split()) for block in ARMORED_KEY.finditer(text)]
    if len(blocks) != text.count("-----BEGIN"):
        raise ValueError("a block of it is damaged or no public key")
    return b"".join(base64.b64decode(block, validate=True) for block in blocks)


def require_roots(path: Path) -> None:
    """Raises ArtifactError if others than root can change a file or directory of keys."""
    status = path.stat()
    if status.st_uid not in {0, os.geteuid()} or stat.S_IMODE(status.st_mode) & 0o022:
        raise release_key_error(path, "can be changed by other users than root")


def signature_error(cause: str) -> ArtifactError:
    return ArtifactError(
        "release-signature-invalid",
        f"The signature of the release is not accepted: {cause}. Nothing was installed.",
        "Use a release that is signed with a key of this machine, and a mirror that has its SHA256SUMS.asc. "
        f"For releases that you sign yourself, copy the public key to {ADMINISTRATOR_KEYS} on this machine.",
    )


def release_key_error(path: Path, cause: str) -> ArtifactError:
    return ArtifactError(
        "release-key-invalid",
        f"{path} {cause}. It decides which releases of the agent are genuine.",
        f"Export the key again with `gpg --export`, then run `chown -R root: {path}` and `chmod go-w {path}`.",
    )
