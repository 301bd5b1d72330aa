"""Paths and state files of the azcmagent stand-in on a machine."""

from __future__ import annotations

import grp
import json
import os
import pwd
import uuid
from pathlib import Path
from typing import Any

VERSION = "1.50.03121.0"
HERE = Path(__file__).resolve().parents[2]  # /opt/azcmagent
STATE = Path("/var/opt/azcmagent")
CONFIG = STATE / "agentconfig.json"
SECRET = STATE / "certs" / "secret"
TOKENS = STATE / "tokens"
SETTINGS = Path("/etc/opt/azcmagent/localconfig.json")
USER = "himds"


def cloud() -> dict[str, str]:
    document: dict[str, str] = json.loads((HERE / "etc" / "cloud.json").read_text())
    return document


def registered() -> dict[str, Any] | None:
    """What this machine is registered as."""
    try:
        document: dict[str, Any] = json.loads(CONFIG.read_text())
    except (OSError, ValueError):
        return None
    return document


def machine_id() -> str:
    """The same as long as the machine is the same."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, Path("/etc/machine-id").read_text().strip()))


def write(path: Path, text: str, mode: int, *, ours: bool = False) -> None:
    """Writes a file with its mode from the start, and for the service's user if requested."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.new")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    if ours and os.geteuid() == 0:
        os.chown(part, pwd.getpwnam(USER).pw_uid, grp.getgrnam(USER).gr_gid)
    part.chmod(mode)
    part.replace(path)
